"""To continue as if nothing had happened: state per parameter, and the bucketing under which it was made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pliant.algorithms.base import Rest
from pliant.comm.base import Comm
from pliant.engine.exchange import Exchanger
from pliant.engine.front import Arrival
from pliant.engine.making import InForce
from pliant.spec import SyncPlan

__all__ = ["LaidOutAsSaved", "Resumed", "read_state", "write_state"]


@dataclass(frozen=True, kw_only=True)
class LaidOutAsSaved:
    """The first backward pass after a resume, in the buckets of the run that was saved.

    A new DDP begins with a provisional bucketing and settles after one pass. Codecs cut at bucket borders, so that
    pass would differ from the uninterrupted one; here it is gathered into the saved buckets first.
    """

    buckets: Mapping[int, tuple[str, ...]]

    def run(self, arrivals: Sequence[Arrival], exchanger: Exchanger, *, step: int, turn: int) -> list[tuple[str, Rest]]:
        """Exchange what arrived, bucket by saved bucket; return what is left to do when it is handed over."""
        rests: list[tuple[str, Rest]] = []
        pieces: dict[str, Tensor] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for arrival in arrivals:
            at = 0
            for name, shape in zip(arrival.names, arrival.shapes, strict=True):
                numel = torch.Size(shape).numel()
                pieces[name], shapes[name] = arrival.buffer[at : at + numel], shape
                at += numel
        for index, names in sorted(self.buckets.items()):
            buffer = torch.cat([pieces[name] for name in names])  # (bucket numel,)
            bucket = exchanger.laid_out(index, names, [shapes[name] for name in names], buffer)
            rests += exchanger.run(bucket, buffer, exchanger.inspect(bucket, buffer), step=step, turn=turn)
            for name, result in zip(names, buffer.split([pieces[n].numel() for n in names]), strict=True):
                pieces[name].copy_(result)
        return rests


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where to go on."""

    step: int
    turn: int
    layout: LaidOutAsSaved | None


def write_state(
    made: InForce, plan: SyncPlan, comm: Comm, module: nn.Module, *, step: int, turn: int
) -> dict[str, Any]:
    """Return {'rank<i>': {...}} of tensors whose shapes depend only on the model, the plan and the ranks."""
    exchanger = made.exchanger
    own: dict[str, Any] = {}
    if made.weights is not None:
        own |= {"weights": made.weights.counters}
    if made.apart:
        # Copies, since a loader may fill a checkpoint's own entry for the model, of one rank only, in place.
        own |= {"model": {name: tensor.clone() for name, tensor in _tensors_of(module).items()}}
    if made.owned is not None:
        own |= {"optimizer": made.owned.state}
    if made.feeler is not None:
        own |= {"curvature": made.feeler.state}
    if made.governor is not None:
        own |= {"governor": made.governor.state}
    place = {name: (b, k) for b, names in exchanger.layout.items() for k, name in enumerate(names)}
    layout = torch.tensor([place.get(name, (-1, -1)) for name in exchanger.store.tensors], dtype=torch.int64)
    return {
        f"rank{comm.rank}": {
            "counters": torch.tensor([step, turn, comm.size, int(plan.hash, 16) >> 1], dtype=torch.int64),
            "layout": layout,  # (num_parameters, 2): bucket, place in it; -1 before the first exchange
            "slots": {name: dict(slots) for name, slots in exchanger.store.tensors.items() if slots},
            **own,
        }
    }


def read_state(state: Mapping[str, Any], made: InForce, plan: SyncPlan, comm: Comm, module: nn.Module) -> Resumed:
    """Put saved tensors where they belong. Raises ValueError, before anything is changed, if they do not fit."""
    own = state.get(f"rank{comm.rank}")
    if own is None:
        raise ValueError(f"the state holds {', '.join(state)}, but this is rank {comm.rank}; load its own part.")
    step, turn, size, plan_hash = own["counters"].tolist()
    if size != comm.size:
        raise ValueError(
            f"the state was saved by {size} ranks, this run has {comm.size}; residuals belong to ranks. "
            "Resume with as many, or let pliant.resize() make states for this number from those of all ranks."
        )
    if plan_hash != int(plan.hash, 16) >> 1:
        raise ValueError("the state was saved under another plan; relax() with that plan, load, then switch().")
    tensors = made.exchanger.store.tensors
    slots: Mapping[str, Mapping[str, Tensor]] = own["slots"]
    if {n: set(s) for n, s in slots.items()} != {n: set(s) for n, s in tensors.items() if s}:
        raise ValueError("the state's parameters are not the model's; load it into the model that it was saved from.")
    for name, saved in slots.items():
        for slot, tensor in saved.items():
            tensors[name][slot].copy_(tensor)
    if made.weights is not None:
        made.weights.counters = own["weights"]
    if made.apart:
        for name, tensor in _tensors_of(module).items():
            tensor.copy_(own["model"][name])
    if made.owned is not None:
        made.owned.state = own["optimizer"]
    if made.feeler is not None:
        made.feeler.state = own["curvature"]
    if made.governor is not None and "governor" in own:  # a state made for more ranks from that of one has none
        made.governor.state = own["governor"]
    if made.served is not None:
        made.served.begin()
    return Resumed(step=step, turn=turn, layout=_read_layout(own["layout"], list(tensors)))


def _read_layout(layout: Tensor, names: Sequence[str]) -> LaidOutAsSaved | None:
    buckets: dict[int, list[tuple[int, str]]] = {}
    for name, (bucket, place) in zip(names, layout.tolist(), strict=True):
        buckets.setdefault(bucket, []).append((place, name))
    if -1 in buckets:
        return None
    return LaidOutAsSaved(buckets={b: tuple(name for _, name in sorted(held)) for b, held in buckets.items()})


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers, detached but live."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
