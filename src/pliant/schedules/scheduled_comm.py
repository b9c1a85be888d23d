"""Comm whose sums of dense vectors follow a schedule: a given one, or what is found for the network beside training."""

import itertools
import weakref
from functools import partial

import torch
from torch import Tensor

from pliant.comm.base import Comm, ReduceOp, Work, require_contiguous
from pliant.comm.works import StagedWork, waited_for
from pliant.comm.wrapped import WrappedComm
from pliant.netmodel import Overheads
from pliant.schedules.background import SolverOptions
from pliant.schedules.choice import SCHEDULE_SOLVER, ScheduleChoice, SumKind, SumWay
from pliant.schedules.dense import dense_merged, dense_task, ring_s
from pliant.schedules.execute import ScheduledAllReduce
from pliant.spec import Schedule, Scheduling, Topology

__all__ = ["ScheduledComm", "scheduled"]


class ScheduledComm(WrappedComm):
    """Hands everything on but sums of floating-point vectors, which follow schedules for the network.

    Without a schedule, sums are the other comm's own all-reduce; `ScheduleChoice` says when they are not. A schedule is
    verified and compared before its first use (`ScheduledAllReduce`). Results are equal to the bit on all ranks; a
    change of the schedule changes the order of additions.

    Args:
        comm: The other comm.
        schedule: A schedule, or the network for which to find some: that of all ranks, or of one rank for each host.
        overheads: Overheads beside the topology.
        solver: When searches begin and end, and how long results are on trial.

    Raises:
        ValueError: The schedule or the topology is for another number of ranks.

    """

    def __init__(
        self,
        comm: Comm,
        schedule: Schedule | Topology,
        *,
        overheads: Overheads | None = None,
        solver: SolverOptions = SCHEDULE_SOLVER,
    ) -> None:
        super().__init__(comm)
        self.choice = ScheduleChoice(comm, schedule, overheads=overheads, solver=solver)
        """Choice among the ways of all sums over these ranks, those in codes as well."""
        self._kinds: dict[tuple[int, torch.dtype], SumKind] = {}

    @property
    def prefers_collectives(self) -> bool:
        """True, so that short sums, too, are calls of `all_reduce`, and go by a schedule."""
        return True

    @property
    def num_scheduled(self) -> int:
        """Kinds of sums that go by a schedule now."""
        return self.choice.num_scheduled

    @property
    def is_searching(self) -> bool:
        """Whether schedules are still searched for, or on trial; alike on all ranks."""
        return self.choice.is_open

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        if op != "sum" or not x.is_floating_point() or not x.numel() or self.size == 1:
            return self._comm.all_reduce(x, op)
        require_contiguous(x)
        kind = self._kind_of(x)
        by_schedule = self.choice.way(kind)
        if by_schedule is None and not self.choice.is_open:
            return self._comm.all_reduce(x)
        stages = waited_for(self._comm.all_reduce(x)) if by_schedule is None else by_schedule(x.view(-1))
        work = StagedWork(self.choice.in_turn(kind, stages))
        if self.choice.is_open:
            work.wait()
        return work

    def _kind_of(self, x: Tensor) -> SumKind:
        key = (x.numel(), x.dtype)
        if key not in self._kinds:
            num_bytes = x.numel() * x.element_size()
            self._kinds[key] = SumKind(
                name=f"{x.numel()} {x.dtype}",
                task=dense_task(num_bytes, self.size),
                device=x.device,
                without_s=partial(ring_s, num_bytes),
                make=partial(_carry_out, self._comm, *key, x.device),
            )
        return self._kinds[key]

    def close(self) -> None:
        self.choice.close()
        super().close()


def _carry_out(comm: Comm, numel: int, dtype: torch.dtype, device: torch.device, schedule: Schedule) -> SumWay:
    """Return what adds up such vectors by a schedule; not a method, so that neither a vector nor a comm is kept."""
    like = torch.empty(numel, dtype=dtype, device=device)
    merged = dense_merged(schedule, numel, like.element_size())
    numels = [end - first for first, end in itertools.pairwise(schedule.cuts(numel))]
    return ScheduledAllReduce(schedule, merged, merged.collective, numels, comm, like=like).stages


def scheduled(comm: Comm, schedule: Scheduling) -> Comm:
    """Return the comm under which a node's sums go as its schedule says; one for all that ask for the same.

    Raises:
        ValueError: Links were to be measured, and nobody has.

    """
    if schedule == "ring":
        return comm
    if isinstance(schedule, str):
        raise ValueError(
            "schedule='auto' needs the network's links, which nobody has measured here; start with pliant.relax(), or "
            "give a topology."
        )
    made = _MADE.get((id(comm), schedule)) or ScheduledComm(comm, schedule)
    _MADE[id(comm), schedule] = made
    return made


_MADE: "weakref.WeakValueDictionary[tuple[int, Schedule | Topology], ScheduledComm]" = weakref.WeakValueDictionary()
"""Each keeps the comm of its key, so that no other has its id."""
