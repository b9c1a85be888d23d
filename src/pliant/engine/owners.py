"""Owners of parts for several optimizers: the parameters of each optimizer have owners of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.engine.comm_thread import CommThread
from pliant.engine.owned_ranges import OwnedRanges, is_elementwise
from pliant.engine.owner_step import OwnerStep
from pliant.engine.parts import Part
from pliant.engine.server_threads import ServerThreads
from pliant.engine.tracer import Tracer
from pliant.spec import Schedule, Topology

__all__ = ["Owners", "Servers"]


class Owners(Part):
    """Steps of owners, around each optimizer's step.

    Its state is who owns what, which decides of which parts each rank holds the optimizer's state.

    Args:
        owned: The owners of each optimizer's parameters; empty if every rank steps every parameter.
        comm_thread: Communication thread that sends new weights.
        tracer: Tracer that measures waiting for them.
        sends: Whether new weights are sent after a step; owners at a free pace answer from threads instead.

    """

    checks_structure = True

    def __init__(
        self, owned: Mapping[Optimizer, OwnerStep], comm_thread: CommThread, tracer: Tracer, *, sends: bool = True
    ) -> None:
        self._owned, self._comm_thread, self._tracer, self._sends = owned, comm_thread, tracer, sends
        if owned:
            self.key = "owned"
            self.keeps_from_joining = "this plan lets one rank step each parameter, and it would have to go on"

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Drop an optimizer's gradients of others' parts."""
        if optimizer in self._owned:
            self._owned[optimizer].keys.require_own()
            self._owned[optimizer].before_step()

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Step parts, send the new weights that an optimizer has stepped to all, and receive theirs. Collective."""
        if self._sends and optimizer in self._owned:
            self._owned[optimizer].step_parts()
            share = self._owned[optimizer].share
            with self._tracer.record_wait():
                self._comm_thread.submit(lambda: share(step + 1), name="new weights", step=step).wait()

    def hand_back(self, step: int) -> None:
        """Give every rank the whole state of all optimizers. Collective."""
        for owned in self._owned.values():
            owned.give_all()
        self.close()  # the state is whole now

    def close(self) -> None:
        """Leave the state_dict of all optimizers to torch alone."""
        for owned in self._owned.values():
            owned.keys.close()

    def after_load(self) -> None:
        """Drop all optimizers' state of others' parts."""
        for owned in self._owned.values():
            owned.drop_others()
            owned.keys.has_own()

    @property
    def names(self) -> set[str]:
        """All parameters that have an owner."""
        return {name for owned in self._owned.values() for name in owned.names}

    @property
    def mine(self) -> dict[str, OwnedRanges]:
        """Parameter -> what this rank owns of it, without those of which it owns nothing."""
        return {own.name: own for owned in self._owned.values() for own in owned.owned_here}

    def explain(self) -> str:
        """Say where parameters are cut, and how even the loads of owners are."""
        told: list[str] = []
        for optimizer, owned in self._owned.items():
            name, loads = type(optimizer).__name__, owned.loads
            cut = f"{owned.num_cut} of {len(owned.names)} parameters of {name} are cut"
            kind = "works element by element" if is_elementwise(optimizer) else "may need whole parameters"
            mean = max(1.0, sum(loads) / len(loads))
            inside = " Ranks of a host add up first, so that a part leaves each host once." if owned.by_hosts else ""
            ways = "".join(map(_told_way, owned.schedules))
            told.append(
                f"Owners: {cut}, since it {kind}; the busiest rank owns {max(loads) / mean:.3g} of the mean."
                f"{inside}{ways}"
            )
        return "\n".join(told)

    @property
    def state(self) -> Mapping[str, Tensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Parameter -> int64 (num_parts, 3): owner, start and stop of each part."""
        return {name: table for owned in self._owned.values() for name, table in owned.tables.items()}

    @state.setter
    def state(self, saved: Any) -> None:
        """Take nothing over, since the plan says who owns what."""

    def check_state(self, saved: Any, step: int) -> None:
        """Raise ValueError for parts that others owned when the state was saved; it is empty where states are whole."""
        mine = self.state
        if saved and (saved.keys() != mine.keys() or any(not torch.equal(saved[n].cpu(), t) for n, t in mine.items())):
            raise ValueError(
                "the state was saved when parameters were cut into other parts, or these had other owners, than under "
                "this plan, optimizer and Pliant; load it with pliant.load_run(..., resize=True), which cuts it anew."
            )


def _told_way(schedule: Schedule | Topology) -> str:
    if isinstance(schedule, Schedule):
        return f" Gradients go to them, and new weights back, by the schedule {schedule.name!r}."
    return " Both ways go straight, until a schedule for the links is found and measured to be faster."


class Servers(Part):
    """Server threads of owners at a free pace, for each optimizer.

    Args:
        served: The servers of each optimizer's parameters.
        tracer: Tracer that measures waiting for weights.

    """

    keeps_from_joining = "this plan exchanges weights between steps"
    makes_up_for_skips = True
    lets_ranks_differ = True

    def __init__(self, served: Mapping[Optimizer, ServerThreads], tracer: Tracer) -> None:
        self._served, self._tracer = served, tracer

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Send an optimizer's gradients to the owners, and receive weights from them."""
        if optimizer in self._served:
            with self._tracer.record_wait():
                self._served[optimizer].step(optimizer, step)

    def steps_skipped(self, optimizers: Sequence[Optimizer], step: int) -> None:
        """Send owners a gradient of zero for each step that was skipped, and receive weights."""
        served = [self._served[each] for each in optimizers if each in self._served]
        with self._tracer.record_wait():
            for each in served:
                each.send({}, step)
            for each in served:  # in whichever order others ask for these, nobody waits for what was not sent
                each.receive()

    def settle(self, step: int) -> None:
        """Wait until all gradients are used. Collective."""
        for served in self._served.values():
            served.leave()  # all before any waits: a rank that makes more steps needs each optimizer's owners
        for served in self._served.values():
            served.finish()

    def hand_back(self, step: int) -> None:
        """Wait until all gradients are used, and end the threads. Collective."""
        self.settle(step)
        for served in self._served.values():
            served.close()

    def abandon(self) -> None:
        """Tell all peers that this rank is lost to them; does nothing after `hand_back`."""
        for served in self._served.values():
            served.abandon()

    def after_load(self) -> None:
        """Continue from the current weights and optimizer states."""
        for served in self._served.values():
            served.begin()
