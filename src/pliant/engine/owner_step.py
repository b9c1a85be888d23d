"""Parameters with owners, which step their parts and send the new weights to all ranks."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.executors.owner_ways import owner_ways
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comms import Comms
from pliant.engine.initial_sync import broadcast_data
from pliant.engine.optimizer_copy import OptimizerCopy
from pliant.engine.owned_ranges import OwnedRanges, pack, unpack, whole_state
from pliant.engine.owner_keys import OwnerKeys, is_of_ranks
from pliant.engine.weight_spread import WeightSpread
from pliant.layouts.parts import Range
from pliant.spec import OwnerScheduling, Schedule, Topology
from pliant.spec.exchange import Level
from pliant.spec.owners import schedule_of

__all__ = ["OwnerStep"]


class OwnerStep:
    """Parameters whose parts have owners, and the optimizer's state, of which each rank holds that of its own parts.

    The user's optimizer steps the parameters that this rank owns whole, and a copy of it what it owns of others
    (`OptimizerCopy`). The optimizer's state of what others own is dropped here; `give_all` brings it back.

    Args:
        store: Nodes of all parameters, and their parts.
        comms: Comms of the run, of all ranks and of the levels that nodes have.
        optimizer: Optimizer whose state is divided.

    """

    def __init__(self, store: AlgorithmState, comms: Comms, optimizer: Optimizer) -> None:
        comm = comms.all
        self._comm, self._optimizer = comm, optimizer
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.parameters = {n: p for n, p in store.parameters.items() if n in store.parts and id(p) in held}
        self._owned = [  # per rank: parameter -> what it owns of it
            {name: own for name in self.parameters if (own := _owned_by(rank, name, store)) is not None}
            for rank in range(comm.size)
        ]
        lockstep = {name for name in self.parameters if not store.nodes[name].steps_beside}
        self._spreads = [] if comm.size == 1 else self.spreads_of(lockstep, store, comms)
        self._cut = [own for n, own in self._owned[comm.rank].items() if n in lockstep and not own.is_whole]
        self._vectors = [own.empty() for own in self._cut]
        self._copy = OptimizerCopy(optimizer, self._cut, self._vectors)
        self.tables = {name: _table(store.parts[name]) for name in self.parameters}
        """Parameter -> int64 (num_parts, 3): owner, start and stop of each part."""
        self.by_hosts = any(store.nodes[name].levels for name in self.parameters)
        """Whether ranks of a host add up some gradients before they leave it."""
        schedules = [schedule_of(store.nodes[name]) for name in self.parameters]
        self.schedules = list(dict.fromkeys(way for way in schedules if isinstance(way, Schedule | Topology)))
        """Ways of gradients to owners and of weights back, other than straight."""
        self.drop_others(keeps_cut=False)
        self.keys = OwnerKeys(optimizer, self.parameters, self._owned[comm.rank], comm.rank)

    @property
    def names(self) -> set[str]:
        """All parameters whose parts have owners."""
        return set(self.parameters)

    def owned_by(self, rank: int) -> list[OwnedRanges]:
        """Return what a rank owns of each parameter, in the model's order, without those of which it owns nothing."""
        return list(self._owned[rank].values())

    def own(self, name: str) -> OwnedRanges | None:
        """Return what this rank owns of a parameter, or None."""
        return self._owned[self._comm.rank].get(name)

    @property
    def owned_here(self) -> list[OwnedRanges]:
        """Ranges that this rank owns, parameter by parameter."""
        return self.owned_by(self._comm.rank)

    @property
    def num_cut(self) -> int:
        """Parameters that are cut."""
        return sum(len(table) > 1 for table in self.tables.values())

    @property
    def loads(self) -> list[int]:
        """Elements that each rank owns."""
        return [sum(own.numel for own in held.values()) for held in self._owned]

    @torch.no_grad()
    def before_step(self) -> None:
        """Take the gradients of what this rank owns in part, and leave the optimizer those of what it owns whole."""
        for own, vector in zip(self._cut, self._vectors, strict=True):
            gradient = own.parameter.grad
            vector.grad = None if gradient is None else torch.cat(own.views(gradient))
        for name, parameter in self.parameters.items():
            own = self.own(name)
            if own is None or not own.is_whole:
                parameter.grad = None

    @torch.no_grad()
    def step_parts(self) -> None:
        """Step what this rank owns in part; the optimizer has stepped the rest."""
        for own, vector in zip(self._cut, self._vectors, strict=True):
            pack(vector, own.views(own.parameter))
        self._copy.follow_schedule()
        self._copy.follow_scaler()
        self._copy.take_states()
        self._copy.step()
        for own, vector in zip(self._cut, self._vectors, strict=True):
            vector.grad = None
            unpack(vector, own.views(own.parameter))

    @torch.no_grad()
    def share(self, step: int) -> None:
        """Send new weights to all, and receive theirs. Collective; runs in the communication thread, after a step."""
        for spread in self._spreads:
            spread.pack({})
            spread.send(step)
            spread.unpack(own=False)

    def spreads_of(self, names: Collection[str], store: AlgorithmState, comms: Comms) -> list[WeightSpread]:
        """Return what sends new weights of some parameters to all: of each kind of levels, schedule and dtype."""
        kinds: dict[tuple[tuple[Level, ...], OwnerScheduling, torch.dtype], list[str]] = {}
        for name in (name for name in self.parameters if name in names):
            node = store.nodes[name]
            key = node.levels, schedule_of(node), self.parameters[name].dtype.to_real()
            kinds.setdefault(key, []).append(name)
        made: list[WeightSpread] = []
        for (_, _, dtype), mine in kinds.items():
            held = [[owned[name] for name in mine if name in owned] for owned in self._owned]
            node, device = store.nodes[mine[0]], self.parameters[mine[0]].device
            comm = comms.of(node)
            made.append(WeightSpread(held, comm, dtype=dtype, device=device, ways=owner_ways(node, comm)))
        return made

    @torch.no_grad()
    def give_all(self) -> None:
        """Give every rank the whole optimizer state. Collective."""
        if self._comm.size == 1:
            return
        found: dict[str, list[tuple[OwnedRanges, Mapping[str, Any]]]] = {name: [] for name in self.parameters}
        for rank, held in enumerate(self._owned):
            device = next(iter(self.parameters.values())).device
            theirs = broadcast_data([dict(self._state_of(name)) for name in held], rank, self._comm, device)
            for own, state in zip(held.values(), theirs, strict=True):
                if state:
                    found[own.name].append((own, state))
        for name, parts in found.items():
            own = self.own(name)
            if parts and (own is None or not own.is_whole):
                self._optimizer.state[self.parameters[name]] = whole_state(parts)

    def _state_of(self, name: str) -> Mapping[str, Any]:
        state, own = self._optimizer.state.get(self.parameters[name], {}), self.own(name)
        return state if own is None else own.cut(state)

    def drop_others(self, *, keeps_cut: bool = True) -> None:
        """Drop the optimizer's state of what others own.

        Args:
            keeps_cut: Whether states that are cut already are those of this rank. Else they are another's, which a
                loaded optimizer has brought along, and are dropped as well.

        """
        states = self._optimizer.state
        for name, parameter in self.parameters.items():
            own = self.own(name)
            if is_of_ranks(states.get(parameter, {})):  # loaded before there were owners
                states.pop(parameter)
            if parameter not in states or (own is not None and own.is_whole):
                continue
            kept = {} if own is None else own.cut(states[parameter])
            if own is None or not (own.is_cut(kept) if keeps_cut else own.is_of_all(states[parameter])):
                states.pop(parameter)
            else:
                states[parameter] = kept


def _owned_by(rank: int, name: str, store: AlgorithmState) -> OwnedRanges | None:
    ranges = tuple(part for owner, part in store.parts[name] if owner == rank)
    return OwnedRanges(name=name, parameter=store.parameters[name], ranges=ranges) if ranges else None


def _table(parts: Sequence[tuple[int, Range]]) -> Tensor:
    return torch.tensor([(owner, *part) for owner, part in parts], dtype=torch.int64)
