"""Choice of the ways of a run's sums, alike on all ranks: a given schedule, or what is found beside training."""

import json
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from pliant.accelerator import is_accelerator, synchronize
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.netmodel import Overheads, overheads_of
from pliant.schedules.background import BackgroundSolver, SolverOptions
from pliant.schedules.collective import Collective
from pliant.spec import Schedule, Topology, from_json, to_json

__all__ = ["SCHEDULE_SOLVER", "ScheduleChoice", "SumKind", "SumWay", "choice_for", "require_places"]

SCHEDULE_SOLVER = SolverOptions(after=8, limit_s=20.0, trials=5)
"""Sums of a kind before a search for it, its time limit, and sums on trial."""
_EVERY = 4
"""Sums from one word of rank 0's to the next, as long as there is something to decide."""
_WORDS = ("stay", "change", "back", "settled")


SumWay: TypeAlias = Callable[..., Generator[None]]
"""What carries out a sum in stages, which yield while messages are under way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SumKind:
    """Sums that go the same way: of vectors of one length and dtype, or in one codec."""

    name: str
    """Name that is the same on all ranks, and no other kind's."""
    task: Collective
    """Who has what before, and needs what after, among those for whom schedules are: bytes, or those of payloads."""
    device: torch.device
    without_s: Callable[[Topology, Overheads], float]
    """Predicts the seconds of the sum without a schedule."""
    make: Callable[[Schedule], SumWay]
    """Returns what carries out such a sum by a schedule; collective."""


class ScheduleChoice:
    """A schedule for each kind of sum, or none.

    A given schedule carries out all sums from the first on. With a topology, sums begin without. Rank 0 measures them,
    and searches for a schedule in a process of its own, for each kind in turn, and for the pause that was before its
    sums, since links that were silent start slowly. What it finds is used if it is predicted to be faster, and stays if
    the median of its first sums is faster than that of the sums before; else all return together. While there is
    something to decide, rank 0 tells all in one byte before every fourth sum. Every rank asks for the same sums in the
    same order.

    Args:
        comm: Ranks that add up.
        schedule: A schedule, or the network for which to find some: that of all ranks, or of one rank for each host.
        overheads: Overheads beside the topology.
        solver: When searches begin and end, and how long results are on trial.
        num_places: Ranks of a schedule; fewer than those that add up where hosts stand in their place.

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
        num_places: int | None = None,
    ) -> None:
        num_places = comm.size if num_places is None else num_places
        self.comm = comm
        """Ranks that add up."""
        require_places(schedule, num_places)
        self._given = schedule if isinstance(schedule, Schedule) else None
        self._topology = _topology_for(num_places, schedule) if isinstance(schedule, Topology) else None
        self._ready: dict[str, SumWay] = {}
        self._under_way: dict[str, Generator[None]] = {}
        """Stages of the last sum of each kind, which may have some left."""
        self._known: dict[str, SumKind] = {}
        """Kinds that were asked for and still come, the same on all ranks."""
        self._last: dict[str, int] = {}
        """Number of the last sum of each of them."""
        self._ended_s = time.perf_counter()
        """When the last sum ended."""
        self._on_trial = ""
        self._is_open, self._calls, self._after = False, 0, solver.after
        """Whether rank 0 has something to decide; sums while it had; and sums of a kind before a search for it."""
        self._solver: BackgroundSolver | None = None
        if self._topology is not None and comm.rank == 0:
            known = overheads if overheads is not None else overheads_of(self._topology)
            self._solver = BackgroundSolver(solver, self._topology, known)
            weakref.finalize(self, self._solver.close)

    @property
    def num_scheduled(self) -> int:
        """Kinds of sums that go by a schedule now."""
        return len(self._ready)

    @property
    def is_open(self) -> bool:
        """Whether schedules are still searched for, or on trial; alike on all ranks."""
        return self._is_open

    def carry_out(self, kind: SumKind, otherwise: Callable[..., None], *given: Any) -> None:
        """Carry out the next sum, which is of this kind, by its schedule if it has one. Collective."""
        way = self.way(kind)
        start_s = time.perf_counter()
        if way is None:
            otherwise(*given)
        else:
            for _ in way(*given):
                pass
        self.note(kind, start_s)

    def in_turn(self, kind: SumKind, stages: Generator[None]) -> Generator[None]:
        """Yield the stages of a sum whose way was asked for; none as long as ways are judged by their time.

        The buffers of a kind are for one sum at a time, so one that has begun ends first. On an accelerator, where
        stages have threads of their own (`CommThread`), it could not.
        """
        if self._is_open or is_accelerator(kind.device):
            start_s = time.perf_counter()
            for _ in stages:
                pass
            self.note(kind, start_s)
            return
        for _ in self._under_way.pop(kind.name, ()):
            pass
        self._under_way[kind.name] = stages
        yield from stages

    def way(self, kind: SumKind) -> SumWay | None:
        """Return what carries out the next sum, which is of this kind, by a schedule; None without. Collective."""
        if self._given is not None and kind.name not in self._ready:
            self._ready[kind.name] = kind.make(self._given)
        if self._topology is not None:
            if kind.name not in self._known:
                self._known[kind.name] = kind
                self._is_open = True
            if self._is_open:
                self._last[kind.name] = self._calls
                if self._calls % _EVERY == 0:
                    self._listen(kind.device)
                self._calls += 1
        return self._ready.get(kind.name)

    def note(self, kind: SumKind, start_s: float) -> None:
        """Let rank 0 know when a sum of this kind began, which has just ended."""
        if self._solver is None or self._topology is None or not self._is_open:
            return
        synchronize(kind.device)
        end_s, pause_s = time.perf_counter(), start_s - self._ended_s
        self._ended_s = end_s
        predict = partial(kind.without_s, self._topology)
        name = kind.name.encode()
        self._solver.note_call(name, kind.task, predict, end_s - start_s, pause_s=pause_s, is_dense=True)

    def _listen(self, device: torch.device) -> None:
        """Do what rank 0 has decided."""
        word, coming = 0, self._coming()
        if self._solver is not None:
            decided = self._solver.decide()
            settled = decided == "stay" and self._solver.has_settled(name.encode() for name in coming)
            word = _WORDS.index("settled" if settled else decided)
        told = torch.tensor([word], dtype=torch.uint8, device=device)
        self.comm.broadcast(told, 0).wait()
        decision = _WORDS[int(told.item())]
        if decision == "settled":
            self._is_open = False
            self._known = {name: self._known[name] for name in coming}  # one that comes again is looked at again
        elif decision == "back":
            self._ready = {name: ready for name, ready in self._ready.items() if name != self._on_trial}
        elif decision == "change":
            self._change(device)

    def _coming(self) -> list[str]:
        """Return the kinds of the last sums. Nobody waits for others, such as those of a model's first buckets."""
        recent = self._after * len(self._known)
        return [name for name in self._known if self._calls - self._last[name] <= recent]

    def _change(self, device: torch.device) -> None:
        """Use the schedule that rank 0 has found for some kind of sums."""
        text = ""
        if self._solver is not None:
            name, found = self._solver.found()
            text = json.dumps([name.decode(), to_json(found.schedule)])
        told: list[Any] = json.loads(broadcast_text(text, self.comm, device=device))
        self._on_trial = told[0]
        self._ready[self._on_trial] = self._known[self._on_trial].make(from_json(Schedule, told[1]))

    def close(self) -> None:
        """End a search that still runs."""
        if self._solver is not None:
            self._solver.close()


def choice_for(comm: Comm, schedule: Schedule | Topology, num_places: int) -> ScheduleChoice:
    """Return the choice among the ways of sums over a comm; one for all that ask for the same."""
    key = id(comm), schedule, num_places
    made = _MADE.get(key) or ScheduleChoice(comm, schedule, num_places=num_places)
    _MADE[key] = made
    return made


_MADE: "weakref.WeakValueDictionary[tuple[int, Schedule | Topology, int], ScheduleChoice]" = (
    weakref.WeakValueDictionary()
)
"""Each keeps the comm of its key, so that no other has its id."""


def require_places(schedule: Schedule | Topology, num_places: int) -> None:
    """Raise ValueError for a schedule or a topology that is for another number of those who add up."""
    if isinstance(schedule, Schedule):
        if schedule.num_ranks != num_places:
            raise ValueError(
                f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks, but {num_places} add up; make one "
                "for this network with `pliant schedule`."
            )
    elif num_places not in (schedule.num_ranks, len(schedule.hosts)):
        raise ValueError(
            f"the topology has {schedule.num_ranks} ranks on {len(schedule.hosts)} hosts, but {num_places} ranks add "
            "up; probe this cluster, or use schedule='auto'."
        )


def _topology_for(num_places: int, topology: Topology) -> Topology:
    """Return the network of those who add up: of all ranks, or of one for each host."""
    return topology if num_places == topology.num_ranks else topology.one_rank_each
