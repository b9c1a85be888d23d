"""Comm whose sums of dense vectors follow a schedule: a given one, or what is found for the network beside training."""

import itertools
import json
import time
import warnings
import weakref
from dataclasses import replace

import torch
from torch import Tensor

from pliant.accelerator import synchronize
from pliant.comm.base import Comm, ReduceOp, Work, require_contiguous
from pliant.comm.text_broadcast import broadcast_text
from pliant.comm.wrapped import WrappedComm
from pliant.netmodel import Overheads
from pliant.schedules.background import BackgroundSolver, SolverOptions
from pliant.schedules.collective import Collective
from pliant.schedules.dense import dense_merged, ring_s
from pliant.schedules.execute import ScheduledAllReduce
from pliant.spec import Schedule, Scheduling, Topology, from_json, to_json

__all__ = ["SCHEDULE_SOLVER", "ScheduledComm", "scheduled"]

SCHEDULE_SOLVER = SolverOptions(after=8, limit_s=20.0, trials=5)
"""Sums of a length before a search for it, its time limit, and sums on trial."""
_EVERY = 4
"""Sums from one word of rank 0's to the next, as long as there is something to decide."""
_WORDS = ("stay", "change", "back", "settled")
_Key = tuple[int, torch.dtype]


class _Done:
    def wait(self) -> None:
        pass


class ScheduledComm(WrappedComm):
    """Hands everything on but sums of floating-point vectors, which follow schedules for the network.

    A given schedule carries out all of them from the first on. With a topology, sums begin with the other comm's own
    all-reduce. Rank 0 measures them, and searches for a schedule in a process of its own, for each length of vectors in
    turn. What it finds is used if it is predicted to be faster, and stays if the median of its first sums is faster
    than that of the sums before; else all return to the all-reduce. While there is something to decide, rank 0 tells
    all in one byte before every fourth sum. A schedule is verified and compared before its first use
    (`ScheduledAllReduce`). Results are equal to the bit on all ranks; a change of the schedule changes the order of
    additions.

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
        self._given = schedule if isinstance(schedule, Schedule) else None
        self._topology = _topology_for(comm, schedule) if isinstance(schedule, Topology) else None
        if self._given is not None and self._given.num_ranks != comm.size:
            raise ValueError(
                f"the schedule {self._given.name!r} is for {self._given.num_ranks} ranks, but {comm.size} add up; make "
                "one for this network with `pliant schedule`."
            )
        self._overheads = overheads if overheads is not None else Overheads()
        self._ready: dict[_Key, ScheduledAllReduce] = {}
        self._known = set[_Key]()
        """Lengths that were summed, the same on all ranks."""
        self._on_trial: _Key | None = None
        self._is_open, self._calls = False, 0
        """Whether rank 0 has something to decide, and sums since it last began to."""
        self._solver: BackgroundSolver | None = None
        if self._topology is not None and comm.rank == 0:
            self._solver = BackgroundSolver(solver, self._topology, self._overheads)
            weakref.finalize(self, self._solver.close)

    @property
    def prefers_collectives(self) -> bool:
        """True, so that short sums, too, are calls of `all_reduce`, and go by a schedule."""
        return True

    @property
    def num_scheduled(self) -> int:
        """Lengths of vectors that go by a schedule now."""
        return len(self._ready)

    @property
    def is_searching(self) -> bool:
        """Whether schedules are still searched for, or on trial; alike on all ranks."""
        return self._is_open

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        if op != "sum" or not x.is_floating_point() or not x.numel() or self.size == 1:
            return self._comm.all_reduce(x, op)
        require_contiguous(x)
        key = (x.numel(), x.dtype)
        if self._given is not None and key not in self._ready:
            self._ready[key] = self._carry_out(self._given, x)
        if self._topology is None:
            self._ready[key](x.view(-1))
            return _Done()
        if key not in self._known:
            self._known.add(key)
            self._is_open = True
        if self._is_open:
            if self._calls % _EVERY == 0:
                self._listen(x)
            self._calls += 1
        start_s = time.perf_counter()
        if key in self._ready:
            self._ready[key](x.view(-1))
        elif self._is_open:
            self._comm.all_reduce(x).wait()
        else:
            return self._comm.all_reduce(x)
        if self._solver is not None and self._is_open:
            synchronize(x.device)
            self._note(x, time.perf_counter() - start_s)
        return _Done()

    def _note(self, x: Tensor, seconds: float) -> None:
        """Let rank 0 know how long a sum took."""
        if self._solver is None or self._topology is None:
            return
        num_bytes, everybody = x.numel() * x.element_size(), (tuple(range(self.size)),)
        task = Collective(num_ranks=self.size, block_bytes=(num_bytes,), holders=everybody, needers=everybody)
        predicted_s = ring_s(num_bytes, self._topology, self._overheads)
        self._solver.note_call(_name(x), task, predicted_s, seconds, is_dense=True)

    def _listen(self, x: Tensor) -> None:
        """Do what rank 0 has decided."""
        word = 0
        if self._solver is not None:
            decided = self._decide(self._solver)
            word = _WORDS.index(
                "settled" if decided == "stay" and self._solver.has_settled(len(self._known)) else decided
            )
        told = torch.tensor([word], dtype=torch.uint8, device=x.device)
        self._comm.broadcast(told, 0).wait()
        decision = _WORDS[int(told.item())]
        if decision == "settled":
            self._is_open, self._calls = False, 0
        elif decision == "back":
            self._ready = {key: ready for key, ready in self._ready.items() if key != self._on_trial}
        elif decision == "change":
            self._change(x)

    def _decide(self, solver: BackgroundSolver) -> str:
        try:
            return solver.decide()
        except RuntimeError as error:  # no reason to end a training that goes on without
            warnings.warn(f"no schedule was found, and sums go on as they are: {error}", stacklevel=2)
            return "stay"

    def _change(self, x: Tensor) -> None:
        """Use the schedule that rank 0 has found for the vectors of some length."""
        text = ""
        if self._solver is not None:
            name, found = self._solver.found()
            text = json.dumps([name.decode(), to_json(found.schedule)])
        name, found = json.loads(broadcast_text(text, self._comm, device=x.device))
        numel, dtype = name.split()
        like = torch.empty(int(numel), dtype=getattr(torch, dtype), device=x.device)
        self._on_trial = (like.numel(), like.dtype)
        self._ready[self._on_trial] = self._carry_out(from_json(Schedule, found), like)

    def _carry_out(self, schedule: Schedule, like: Tensor) -> ScheduledAllReduce:
        merged = dense_merged(schedule, like.numel(), like.element_size())
        cuts = schedule.cuts(like.numel())
        numels = [end - first for first, end in itertools.pairwise(cuts)]
        return ScheduledAllReduce(schedule, merged, merged.collective, numels, self._comm, like=like)

    def close(self) -> None:
        if self._solver is not None:
            self._solver.close()
        super().close()


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


def _name(x: Tensor) -> bytes:
    return f"{x.numel()} {str(x.dtype).removeprefix('torch.')}".encode()


def _topology_for(comm: Comm, topology: Topology) -> Topology:
    """Return the network of a comm's ranks: all of them, or one for each host."""
    if comm.size == topology.num_ranks:
        return topology
    if comm.size == len(topology.hosts):
        return replace(topology, hosts=tuple(replace(host, num_ranks=1) for host in topology.hosts))
    raise ValueError(
        f"the topology has {topology.num_ranks} ranks on {len(topology.hosts)} hosts, but {comm.size} ranks add up; "
        "probe this cluster, or use schedule='auto'."
    )
