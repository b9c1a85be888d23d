"""State of algorithms, kept per parameter, so that it survives new buckets, a switch of plan, and a restart."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from pliant.algorithms.base import Algorithm, State, StateSpec
from pliant.algorithms.executors import executor_for
from pliant.buckets import Bucket, Span, real_shape
from pliant.codecs import all_finite
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.engine.comms import Comms
from pliant.layouts.parts import Range
from pliant.spec import Exchange
from pliant.spec.exchange import Level

__all__ = ["ANCHOR", "CORRECTION", "AlgorithmState"]

OWED = ("residual", "pending", "on its way")
"""Slots that hold gradients which the optimizer has not got yet (Note [conservation])."""

_LIKE_GRADIENTS = (*OWED, "before", "velocity", "momentum", "estimate", "mean")
"""Slots in the unit of gradients, where gradients or momenta are exchanged."""

CORRECTION = "correction"
"""Slot for what an exchange of weights has changed and the weights have not taken yet."""

ANCHOR = "anchor"
"""Slot for the point that all ranks set out from."""

_OF_A_RANK = ("residual", "velocity", CORRECTION)
"""Slots of exchanges of weights that differ between ranks."""

_OF_HOST = ("course", "power")
"""Slots of numbers that the host reads, and so are in its memory, whatever the device of the parameter."""

_FOLLOWED = (ANCHOR, "replica")
"""Slots that `follow` fills from the weights."""


class AlgorithmState:
    """Parameter -> slot -> tensor.

    Slots with one element per element of the parameter are views into flat tensors, one per bucket, so that saving
    needs no copy and algorithms work on whole buckets.
    """

    def __init__(self, parameters: Mapping[str, Tensor], nodes: Mapping[str, Exchange], comms: Comms) -> None:
        self.parameters = parameters
        self.algorithms: dict[Exchange, Algorithm] = {node: executor_for(node) for node in set(nodes.values())}
        self.nodes = dict(nodes)
        self._ranks_per_group = _ranks_per_group(comms)
        self.tensors: dict[str, dict[str, Tensor]] = {}
        self.parts: dict[str, list[tuple[int, Range]]] = {}
        """Parameter -> owner and range of each part, where it has owners (`place_owners`)."""
        self._slots: dict[str, StateSpec] = {}
        for name, parameter in parameters.items():
            node = nodes[name]
            slots = self.algorithms[node].slots(real_shape(parameter), comms.of(node))
            if node.exchanges_weights and (node.timing.delay_steps or node.timing.pace == "free"):
                slots = {**slots, CORRECTION: None}
            self._slots[name] = slots
            self.tensors[name] = {
                slot: torch.zeros(
                    real_shape(parameter) if shape is None else shape,
                    dtype=torch.float32,
                    device="cpu" if _base(slot) in _OF_HOST else parameter.device,
                )
                for slot, shape in slots.items()
            }

    def state_of(self, bucket: Bucket, *, between_steps: bool = False) -> State:
        """Gather the state of a bucket's parameters; slots per element become views of one new flat tensor.

        Where weights are exchanged after a warm-up with gradients, the warm-up's slots belong to buckets of
        gradients, and the others to those between steps.
        """
        kept = {span.name: self._slots_of(span.name, between_steps=between_steps) for span in bucket.spans}
        slots = {slot: shape for own in kept.values() for slot, shape in own.items()}
        flat = {slot: self._flatten(bucket, slot) for slot, shape in slots.items() if shape is None}
        own = {
            slot: {name: self.tensors[name][slot] for name, its in kept.items() if slot in its}
            for slot, shape in slots.items()
            if shape is not None
        }
        return State(flat=flat, of=own)

    def parts_in(self, spans: Sequence[Span]) -> tuple[tuple[int, Range], ...]:
        """Return the owner and the range of each part of a bucket's parameters, in the bucket's order."""
        return tuple(
            (owner, (span.offset + start, span.offset + stop))
            for span in spans
            for owner, (start, stop) in self.parts.get(span.name, ())
        )

    def _slots_of(self, name: str, *, between_steps: bool) -> StateSpec:
        slots = self._slots[name]
        if not self.nodes[name].exchanges_weights:
            return slots
        return {slot: shape for slot, shape in slots.items() if _is_of_warmup(slot) != between_steps}

    def _flatten(self, bucket: Bucket, slot: str) -> Tensor:
        flat = torch.empty(bucket.numel, dtype=torch.float32, device=bucket.flat.device)
        for span in bucket.spans:
            view = flat[span.offset : span.offset + span.numel].view(span.shape)
            view.copy_(self.tensors[span.name][slot])
            self.tensors[span.name][slot] = view
        return flat

    def adopt(self, old: "AlgorithmState", unpaid: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take over the state of an earlier plan; return gradients per parameter for which this plan has no slot.

        Equal nodes keep all slots. Otherwise gradients in the old slots go into the new residual; where there is none,
        they are returned, to be added to the next gradient. Momenta are not gradients, and end with their exchange.

        Args:
            old: State under the earlier plan.
            unpaid: Parameter -> gradient that the earlier plan itself had been left, and had not exchanged yet.

        """
        unplaced: dict[str, Tensor] = {n: debt for n, debt in unpaid.items() if not old.nodes[n].exchanges_weights}
        for name, slots in old.tensors.items():
            if old.nodes[name] == self.nodes[name]:
                for slot, tensor in slots.items():
                    self.tensors[name][slot].copy_(tensor)
                continue
            if old.nodes[name].kind == "momentum":
                continue
            held = [slot for slot in slots if _is_of_warmup(slot) or not old.nodes[name].exchanges_weights]
            owed = [old.of_ranks(name, slot) for slot in held if _base(slot) in OWED]
            if not owed:
                continue
            owed += [unplaced.pop(name)] if name in unplaced else []
            total = torch.stack(owed).sum(0)
            if not all_finite(total):  # an overflow that waited for its exchange ends with the plan
                continue
            if self.nodes[name].kind == "gradients" and "residual" in self.tensors[name]:
                self.tensors[name]["residual"].copy_(total)
            elif bool(total.any()):
                unplaced[name] = total
        return unplaced

    def of_ranks(self, name: str, slot: str) -> Tensor:
        """Return gradients in a slot, scaled such that their mean over ranks is what this plan's result would get."""
        # Of each host (or rack) one rank keeps an element, as a share of the mean over hosts; the others keep zeros.
        inside = [self._ranks_per_group[level] for level in get_args(Level) if level in slot.split("/")[:-1]]
        return self.tensors[name][slot] * max(inside, default=1.0)

    def keep(self, old: "AlgorithmState") -> None:
        """Copy the state of the same nodes that was made among other ranks, as far as it is valid here."""
        for name, slots in self.tensors.items():
            for slot in (slots.keys() & old.tensors[name].keys()) - {CORRECTION}:
                slots[slot].copy_(old.tensors[name][slot])

    def of_gradients(self) -> list[Tensor]:
        """Return the tensors in the unit of gradients, which is that of the loss scale.

        Not those of servers: they get gradients when the optimizer steps, and a scaler has unscaled them then.
        """
        return [
            tensor
            for name, slots in self.tensors.items()
            if self.nodes[name].staleness_bound is None
            for slot, tensor in slots.items()
            if _base(slot) in _LIKE_GRADIENTS and (_is_of_warmup(slot) or not self.nodes[name].exchanges_weights)
        ]

    @property
    def keeps_gradients(self) -> bool:
        """Whether anything is kept from one exchange of gradients to the next."""
        return bool(self.of_gradients())

    def shared(self) -> list[Tensor]:
        """Return tensors that ranks have alike and that weights do not determine, such as an outer momentum."""
        return [
            tensor
            for name in sorted(self.tensors)
            if not self.nodes[name].differs_by_rank
            for slot, tensor in sorted(self.tensors[name].items())
            if not _base(slot).startswith((*_OF_A_RANK, *_FOLLOWED))
        ]

    def norm(self, slot: str) -> float:
        """Return the Euclidean norm of a slot over all parameters of this rank."""
        norms = [float(t.norm()) for slots in self.tensors.values() for s, t in slots.items() if _base(s) == slot]
        return math.hypot(*norms)


def _base(slot: str) -> str:
    """Return a slot's name without the prefixes of combinators."""
    return slot.rpartition("/")[2]


def _is_of_warmup(slot: str) -> bool:
    """Say whether a slot is of the gradients of a warm-up, also between hosts; `averaging/` is of weights."""
    return next(part for part in slot.split("/") if part not in get_args(Level)) == "first"


def _ranks_per_group(comms: Comms) -> dict[Level, float]:
    """Return the mean number of ranks in a group of each level, as far as this rank exchanges between such groups."""
    found: dict[Level, float] = {}
    for levels, comm in comms.by_levels.items():
        at: Comm | None = comm
        for level in levels:
            if isinstance(at, HierarchicalComm):
                found[level] = comms.all.size / at.num_groups
                at = at.outer
    return found
