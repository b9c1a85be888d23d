"""A comm whose operations run one after another on each rank, as on NCCL, and that finds deadlocks."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pliant.comm.base import Comm, CommError, PeerTensors, ReduceOp, Work
from pliant.comm.wrapped import WrappedComm

__all__ = ["InOrderComm", "InOrderQueues"]

_Group = tuple[object, ...]
"""Name of a communicator, the same on all its ranks."""
_Place = tuple[_Group, int]
"""A rank's queue: communicator and rank in it."""


@dataclass(frozen=True)
class _Meeting:
    """A message, or a collective, which its ranks must have come to at the same time."""

    what: str
    ranks: tuple[int, ...]
    number: int
    """Counts the messages from one rank to another, or the collectives of the communicator, from 1."""

    def __str__(self) -> str:
        if len(self.ranks) == 2 and self.what == "message":
            return f"message {self.number} from rank {self.ranks[0]} to rank {self.ranks[1]}"
        return f"{self.what} (collective {self.number})"


@dataclass(eq=False)
class _Operation:
    """A call of a rank: messages, or a collective."""

    name: str
    number: int
    open: dict[_Meeting, Tensor | Callable[[], Work]]
    """Messages and collectives that have not happened yet: their tensor, or a function that starts one here."""
    done: bool = False


@dataclass
class _Queue:
    """The operations of one rank in one communicator, and what it has asked for so far."""

    waiting: deque[_Operation] = field(default_factory=deque[_Operation])
    asked: Counter[object] = field(default_factory=Counter[object])
    poster: int = 0
    """Thread that has posted last; by the contract of a comm the only one that will post next."""


class InOrderQueues:
    """The queues of all communicators of a world of threads.

    Each rank has one queue per communicator. Only its first operation runs; it ends when each of its messages and
    collectives has met its counterpart, which must be in the first operation of the other rank's queue. That is the
    order in which NCCL executes; a message of NCCL may be buffered, which nobody may rely on, so here none is.

    A wait that can never end is found when it begins: first operations that need each other's places in a circle, or a
    rank whose thread waits for one of them instead of posting what another needs. All that wait then raise CommError.

    Messages are copied in memory; collectives go through the comm that is wrapped, so that sums are its own.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards all queues, and tells of every change."""
        self.broken = ""
        """Why nothing can go on: the circle of waiting that was found, or an error."""
        self._queues: dict[_Group, list[_Queue]] = {}
        self._waits: dict[int, _Place] = {}
        """Thread -> communicator and rank of the operation for which it waits."""
        self._wrapped: Counter[int] = Counter()

    def wrap(self, comm: Comm) -> "InOrderComm":
        """Return a comm in order over another one. Collective: all ranks wrap the same comms in the same order."""
        with self.changed:
            self._wrapped[comm.rank] += 1
            name = ("comm", self._wrapped[comm.rank])
        return InOrderComm(comm, self, name)

    def queue(self, group: _Group, rank: int, size: int) -> _Queue:
        """Return the queue of a rank in a communicator. The lock is held."""
        return self._queues.setdefault(group, [_Queue() for _ in range(size)])[rank]

    def advance(self, group: _Group) -> None:
        """Run what can run in a communicator. The lock is held."""
        queues = self._queues[group]
        try:
            while any([self._carry_out(queues), self._drop_done(queues)]):
                self.changed.notify_all()
        except BaseException as error:
            self.broken = self.broken or f"another rank has met this: {error}"
            self.changed.notify_all()
            raise

    def wait(self, group: _Group, rank: int, operation: _Operation, timeout_s: float) -> None:
        """Wait until an operation has ended."""
        me = threading.get_ident()
        with self.changed:
            self._waits[me] = group, rank
            try:
                if not operation.done and not self.broken and (circle := self._circle((group, rank), (), set())):
                    self.broken = self._described(circle)
                    self.changed.notify_all()
                self.changed.wait_for(lambda: operation.done or bool(self.broken), timeout_s)
            finally:
                del self._waits[me]
        if not operation.done:
            why = self.broken or f"its peers have not come to it within {timeout_s:g}s"
            raise CommError(f"rank {rank}: {operation.name} failed: {why}.", rank=rank, op=operation.name)

    def _carry_out(self, queues: list[_Queue]) -> bool:
        """Let all that have met in first operations happen; return whether anything has."""
        heads = [queue.waiting[0] if queue.waiting else None for queue in queues]
        found = dict.fromkeys(meeting for head in heads if head is not None for meeting in head.open)
        met = [m for m in found if all((head := heads[r]) is not None and m in head.open for r in m.ranks)]
        for meeting in met:
            given = [head.open.pop(meeting) for r in meeting.ranks if (head := heads[r]) is not None]
            tensors = [x for x in given if isinstance(x, Tensor)]
            if tensors:
                _copy(meeting, *tensors)
            works = [start() for start in given if not isinstance(start, Tensor)]
            for work in works:
                work.wait()
        return bool(met)

    def _drop_done(self, queues: list[_Queue]) -> bool:
        dropped = False
        for queue in queues:
            while queue.waiting and not queue.waiting[0].open:
                queue.waiting.popleft().done = dropped = True
        return dropped

    def _circle(self, place: _Place, path: tuple[_Place, ...], seen: set[_Place]) -> tuple[_Place, ...]:
        """Return a circle of first operations that wait for each other, to which `path` leads; else nothing."""
        if place in path:
            return path[path.index(place) :]
        if place in seen:
            return ()
        seen.add(place)
        for other in self._needs(place):
            if circle := self._circle(other, (*path, place), seen):
                return circle
        return ()

    def _needs(self, place: _Place) -> Iterable[_Place]:
        """Return the first operations that must end before that of this place can."""
        group, rank = place
        queues = self._queues[group]
        for meeting in queues[rank].waiting[0].open if queues[rank].waiting else ():
            for other in (r for r in meeting.ranks if r != rank):
                queue = queues[other]
                if queue.waiting and meeting in queue.waiting[0].open:
                    continue
                if any(meeting in operation.open for operation in queue.waiting):
                    yield group, other
                elif queue.poster in self._waits:  # who would have to ask for it waits for something else
                    yield self._waits[queue.poster]

    def _described(self, circle: Iterable[_Place]) -> str:
        said: list[str] = []
        for group, rank in circle:
            first = self._queues[group][rank].waiting[0]
            needed = ", ".join(map(str, first.open))
            said.append(f"rank {rank} is in its operation {first.number}, {first.name}, until it has {needed}")
        return "ranks would wait for each other for ever on queues in order: " + "; ".join(said)


class _InOrderWork:
    """An operation in a queue."""

    def __init__(self, comm: "InOrderComm", operation: _Operation) -> None:
        self._comm, self._operation = comm, operation

    def wait(self) -> None:
        comm = self._comm
        comm.queues.wait(comm.group, comm.rank, self._operation, comm.timeout_s)


class InOrderComm(WrappedComm):
    """Gives another comm the order of NCCL: see `InOrderQueues`, whose `wrap` makes it."""

    def __init__(self, comm: Comm, queues: InOrderQueues, group: _Group) -> None:
        super().__init__(comm)
        self.queues, self.group = queues, group
        self._splits = 0

    @property
    def is_in_order(self) -> bool:
        return True

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._collective("all_reduce", lambda: self._comm.all_reduce(x, op))

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        return self._collective("all_gather", lambda: self._comm.all_gather(out, x))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._collective("reduce_scatter", lambda: self._comm.reduce_scatter(out, x, op))

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        return self._collective("all_to_all", lambda: self._comm.all_to_all(out, x))

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
        *,
        turn: int = 0,
        tag: int = 0,
        patience_s: float | None = None,
    ) -> Work:
        messages = [((self.rank, peer), x) for peer, x in sends] + [((peer, self.rank), x) for peer, x in receives]
        return self._post("exchange", [("message", ranks, x) for ranks, x in messages])

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        return self.exchange((), receives)  # in the queue like any other, where it holds up what follows

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._collective("broadcast", lambda: self._comm.broadcast(x, root))

    def reduce(self, x: Tensor, root: int) -> Work:
        return self._collective("reduce", lambda: self._comm.reduce(x, root))

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1)).wait()

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "InOrderComm | None":
        self._splits += 1
        part = self._comm.split(groups, connections)
        if part is None:
            return None
        members = next(tuple(ranks) for ranks in groups if self.rank in ranks)
        return InOrderComm(part, self.queues, (*self.group, self._splits, members))

    def _collective(self, name: str, start: Callable[[], Work]) -> Work:
        return self._post(name, [(name, tuple(range(self.size)), start)])

    def _post(self, name: str, parts: Iterable[tuple[str, tuple[int, ...], Tensor | Callable[[], Work]]]) -> Work:
        with self.queues.changed:
            queue = self.queues.queue(self.group, self.rank, self.size)
            queue.poster = threading.get_ident()
            queue.asked["operations"] += 1
            operation = _Operation(name, queue.asked["operations"], {})
            for what, ranks, part in parts:
                of = ranks if what == "message" else "collectives"
                queue.asked[of] += 1
                operation.open[_Meeting(what, ranks, queue.asked[of])] = part
            queue.waiting.append(operation)
            self.queues.advance(self.group)
        return _InOrderWork(self, operation)


def _copy(meeting: _Meeting, sent: Tensor, received: Tensor) -> None:
    if (sent.dtype, sent.numel()) != (received.dtype, received.numel()):
        raise ValueError(
            f"{meeting} has {sent.numel()} elements of {sent.dtype}, but there is room for {received.numel()} of "
            f"{received.dtype}; let both ranks agree on it."
        )
    received.view(-1).copy_(sent.view(-1))
