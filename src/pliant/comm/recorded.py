"""A comm that counts what goes through it, and changes nothing."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from pliant.comm.base import Comm, PeerTensors, ReduceOp, Work
from pliant.comm.wrapped import WrappedComm

__all__ = ["CommListener", "RecordedComm", "without_counting"]


class CommListener(Protocol):
    """A listener that is told of each communication, and takes the time in its own way."""

    def now(self) -> Any:
        """Return a mark in time."""
        ...

    def on_transfer(self, name: str, start: Any, wait_from: Any, sent_bytes: int, received_bytes: int) -> None:
        """Hear of a communication that has just ended, in the thread that waited for it; marks are those of `now`."""
        ...


class _Timed:
    def __init__(
        self, recorder: "RecordedComm", work: Work, name: str, start: Any, sent: int, received: int, *, idle: bool
    ) -> None:
        self._recorder, self._work, self._noted, self._idle = recorder, work, False, idle
        self._name, self._start, self._sent, self._received = name, start, sent, received

    def wait(self) -> None:
        wait_from_s, wait_from = time.perf_counter(), self._recorder.now()
        self._work.wait()
        if not self._noted:
            self._recorder.note(wait_from_s, self._received, idle=self._idle)
            self._recorder.tell(self._name, self._start, wait_from, self._sent, self._received)
        self._noted = True


class _Expected:
    """Messages that were expected, which count once somebody waits for them."""

    def __init__(self, recorder: "RecordedComm", work: Work, received: int) -> None:
        self._recorder, self._work, self._received, self._waited = recorder, work, received, False

    def wait(self) -> None:
        work = self._work if self._waited else self._recorder.awaited(self._work, self._received)
        self._waited = True
        work.wait()


class RecordedComm(WrappedComm):
    """Counts calls, bytes and waiting time of another comm, and tells a listener of each communication.

    Bytes are those that the operation must move for this rank, n ranks and N bytes in the full tensor:
    all_reduce 2 (n-1)/n N out and in (ring); all_gather (n-1) parts out and in; reduce_scatter and all_to_all
    (n-1)/n N; exchange exactly what is posted; broadcast (n-1) N in all, sent by the root, N received by the others;
    reduce N sent by all but the root. Messages likewise: all_reduce 2 (n-1), all_gather, reduce_scatter and all_to_all
    n-1, broadcast and reduce ceil(log2 n) (the depth of their tree), exchange those that are posted. What `split`
    returns is counted here as well.
    """

    def __init__(self, comm: Comm, listener: CommListener | None = None) -> None:
        super().__init__(comm)
        self._listener = listener
        self._parts: list[RecordedComm] = []
        self._lock = threading.Lock()  # servers of shards talk from threads of their own
        self.reset()

    def reset(self) -> None:
        """Forget everything so far."""
        self._sent_bytes = self._received_bytes = self._sent_messages = 0
        self._wait_s = 0.0
        self._calls: Counter[str] = Counter()
        for part in self._parts:
            part.reset()

    @property
    def sent_bytes(self) -> int:
        """Bytes out of this rank."""
        return self._sent_bytes + sum(part.sent_bytes for part in self._parts)

    @property
    def received_bytes(self) -> int:
        """Bytes into this rank."""
        return self._received_bytes + sum(part.received_bytes for part in self._parts)

    @property
    def sent_messages(self) -> int:
        """Messages out of this rank."""
        return self._sent_messages + sum(part.sent_messages for part in self._parts)

    @property
    def wait_s(self) -> float:
        """Time spent in wait()."""
        return self._wait_s + sum(part.wait_s for part in self._parts)

    @property
    def calls(self) -> Counter[str]:
        """Number of calls by operation."""
        return sum((part.calls for part in self._parts), self._calls.copy())

    @property
    def num_begun(self) -> int:
        """Communications so far. Messages that were expected belong to the exchange that sends, if there is one."""
        calls = self.calls
        return calls.total() - min(calls["expect"], calls["exchange"])

    @property
    def without_counting(self) -> Comm:
        """The comm itself, for messages about the run that are no part of training."""
        return self._comm

    def listen(self, listener: CommListener) -> None:
        """Tell this listener of every communication from now on, also of parts."""
        self._listener = listener
        for part in self._parts:
            part.listen(listener)

    def now(self) -> Any:
        """Return the listener's mark in time."""
        return None if self._listener is None else self._listener.now()

    def tell(self, name: str, start: Any, wait_from: Any, sent: int, received: int) -> None:
        """Tell the listener of one finished communication."""
        if self._listener is not None:
            self._listener.on_transfer(name, start, wait_from, sent, received)

    def note(self, wait_from_s: float, received: int, *, idle: bool = False) -> None:
        """Count one finished communication; an idle one may never have come, and no time was spent waiting for it."""
        now_s = time.perf_counter()
        with self._lock:
            self._wait_s += 0.0 if idle else now_s - wait_from_s
            self._received_bytes += received if idle else 0

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        moved = 2 * (self.size - 1) * x.nbytes // self.size
        return self._count("all_reduce", lambda: self._comm.all_reduce(x, op), moved, moved, 2 * (self.size - 1))

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        moved = (self.size - 1) * x.nbytes
        return self._count("all_gather", lambda: self._comm.all_gather(out, x), moved, moved, self.size - 1)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        moved = (self.size - 1) * out.nbytes
        return self._count("reduce_scatter", lambda: self._comm.reduce_scatter(out, x, op), moved, moved, self.size - 1)

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        moved = (self.size - 1) * x.nbytes // self.size
        return self._count("all_to_all", lambda: self._comm.all_to_all(out, x), moved, moved, self.size - 1)

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        sent, received = sum(x.nbytes for _, x in sends), sum(x.nbytes for _, x in receives)
        start = partial(self._comm.exchange, sends, receives, turn=turn, tag=tag, patience_s=patience_s)
        return self._count("exchange", start, sent, received, len(sends), idle=patience_s is not None)

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        return _Expected(self, self._comm.expect(receives, turn=turn, tag=tag), sum(x.nbytes for _, x in receives))

    def broadcast(self, x: Tensor, root: int) -> Work:
        sent = (self.size - 1) * x.nbytes if self.rank == root else 0
        received = 0 if self.rank == root else x.nbytes
        return self._count("broadcast", lambda: self._comm.broadcast(x, root), sent, received, self._depth)

    def reduce(self, x: Tensor, root: int) -> Work:
        received = (self.size - 1) * x.nbytes if self.rank == root else 0
        sent = 0 if self.rank == root else x.nbytes
        return self._count("reduce", lambda: self._comm.reduce(x, root), sent, received, self._depth)

    def barrier(self) -> None:
        self._calls["barrier"] += 1
        self._comm.barrier()

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "RecordedComm | None":
        part = self._comm.split(groups, connections)
        if part is None:
            return None
        self._parts.append(RecordedComm(part, self._listener))
        return self._parts[-1]

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._comm.close()

    def go_on_with(self, comm: Comm) -> None:
        """Count on over another comm; the one before is closed, and so is what was split from it."""
        self._calls, self._wait_s = self.calls, self.wait_s
        self._sent_bytes, self._received_bytes = self.sent_bytes, self.received_bytes
        self._sent_messages = self.sent_messages
        self.close()
        self._parts.clear()
        self._comm = comm

    @property
    def _depth(self) -> int:
        """Depth of a binomial tree of all ranks."""
        return (self.size - 1).bit_length()

    def awaited(self, work: Work, received: int) -> Work:
        """Count messages that were expected, now that they are due."""
        return self._count("expect", lambda: work, 0, received, 0)

    def _count(
        self, name: str, start: Callable[[], Work], sent: int, received: int, messages: int, *, idle: bool = False
    ) -> Work:
        """Count a communication, then start it: a peer may receive it before another thread here runs.

        Its mark is taken first, so that counts from the moment a listener begins include all that the listener hears.
        """
        mark = self.now()
        with self._lock:
            self._calls[name] += 1
            self._sent_bytes += sent
            self._sent_messages += messages
            self._received_bytes += 0 if idle else received
        return _Timed(self, start(), name, mark, sent, received, idle=idle)


def without_counting(comm: Comm) -> Comm:
    """Return a comm of the same ranks and the same order of messages that counts nothing."""
    return comm.without_counting if isinstance(comm, RecordedComm) else comm
