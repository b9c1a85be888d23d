"""Simulated clock: one rank that computes, and its communication threads, each with a queue of exchanges."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.simulator.core_sharing import CoreSharing

__all__ = ["QueuedExchange", "RankActivity", "RankClock"]

_EPS = 1e-15
_WIRE = CoreSharing(cpus=1.0)
"""The wire is shared as one core is: two exchanges that fill it get half of it each."""


@dataclass(kw_only=True, eq=False)
class QueuedExchange:
    """An exchange in the queue of a communication thread."""

    label: str
    seconds: float
    """By itself."""
    row: int
    """Which exchange of the simulation it is."""
    step: int
    cpu_share: float = 0.0
    """CPU seconds over seconds, both by itself."""
    wire_share: float = 0.0
    """Part of its time in which it fills the wire, by itself."""
    remaining: float = 0.0
    before: "QueuedExchange | None" = None
    """Exchange in front of it when it was queued."""
    arrival_s: float = 0.0
    start_s: float = -1.0
    end_s: float = -1.0

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.end_s >= 0


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """Time of the rank itself: computing, or waiting for an exchange."""

    kind: str
    step: int
    start_s: float
    end_s: float
    item: QueuedExchange | None = None


class RankClock:
    """Simulated time of a rank and its communication threads.

    While the rank computes and a communication thread is busy, computing is slower by one factor and the exchange by
    another: those that are given, or that of the shared cores if it is larger. With cores enough a shorter exchange or
    computation never makes anything later. Exchanges of several threads share the wire.

    Args:
        num_lanes: Communication threads, each first in, first out.
        compute_overlap: Factor of the time of computing beside an exchange.
        exchange_overlap: Factor of the time of an exchange beside computing.
        cores: Cores that computing and the communication threads share; enough for all, if None.

    """

    def __init__(
        self, num_lanes: int, compute_overlap: float, exchange_overlap: float, cores: CoreSharing | None = None
    ) -> None:
        self.now_s = 0.0
        self._queues: list[deque[QueuedExchange]] = [deque() for _ in range(num_lanes)]
        self._last: list[QueuedExchange | None] = [None] * num_lanes
        self._compute_overlap, self._exchange_overlap = compute_overlap, exchange_overlap
        self._cores = CoreSharing() if cores is None else cores
        self.segments: list[RankActivity] = []
        self.items: list[QueuedExchange] = []

    @property
    def idle(self) -> bool:
        """Whether all queues are empty."""
        return not any(self._queues)

    def submit(self, queue_name: int, item: QueuedExchange) -> QueuedExchange:
        """Append an exchange to a communication thread's queue, now."""
        item.arrival_s, item.remaining = self.now_s, item.seconds
        item.before, self._last[queue_name] = self._last[queue_name], item
        queue = self._queues[queue_name]
        queue.append(item)
        self.items.append(item)
        if len(queue) == 1:
            self._begin(queue)
        return item

    def compute(
        self, seconds: float, kind: str, step: int, arrivals: list[tuple[float, int, QueuedExchange]] | None = None
    ) -> None:
        """Compute for so long, and queue exchanges at offsets of it, in order.

        `arrivals` has (offset_s, index of the communication thread, exchange).
        """
        from_s, progress = self.now_s, 0.0
        for offset, queue_name, item in arrivals or ():
            progress = self._compute_until(progress, offset)
            self.submit(queue_name, item)
        self._compute_until(progress, seconds)
        self.segments.append(RankActivity(kind=kind, step=step, start_s=from_s, end_s=self.now_s))

    def wait(self, item: QueuedExchange, step: int) -> None:
        """Wait until an exchange has ended."""
        if item.done:
            return
        from_s = self.now_s
        while not item.done:
            heads = [queue[0] for queue in self._queues if queue]
            slow = max(self._cores.slowdown([head.cpu_share for head in heads]), _wire_slowdown(heads))
            self._pass(min(head.remaining for head in heads) * slow, slow)
        self.segments.append(RankActivity(kind="wait", step=step, start_s=from_s, end_s=self.now_s, item=item))

    def _compute_until(self, progress: float, target: float) -> float:
        while progress < target:
            heads = [queue[0] for queue in self._queues if queue]
            shared = self._cores.slowdown([1.0, *(head.cpu_share for head in heads)])
            slow, exchange_slow = (
                max(factor, shared) if heads else 1.0 for factor in (self._compute_overlap, self._exchange_overlap)
            )
            exchange_slow = max(exchange_slow, _wire_slowdown(heads))
            whole_s = (target - progress) * slow
            next_s = min([head.remaining * exchange_slow for head in heads], default=whole_s)
            if next_s < whole_s:
                self._pass(next_s, exchange_slow)
                progress += next_s / slow
            else:
                self._pass(whole_s, exchange_slow)
                progress = target
        return max(progress, target)

    def _pass(self, seconds: float, slow: float) -> None:
        """Advance time by an interval in which each communication thread at most ends the exchange at its front."""
        self.now_s += seconds
        for queue in self._queues:
            if queue:
                queue[0].remaining -= seconds / slow
                if queue[0].remaining <= _EPS * (1 + self.now_s):
                    self._end(queue)

    def _end(self, queue: deque[QueuedExchange]) -> None:
        queue.popleft().end_s = self.now_s
        if queue:
            self._begin(queue)

    def _begin(self, queue: deque[QueuedExchange]) -> None:
        queue[0].start_s = self.now_s
        if queue[0].remaining <= 0:
            self._end(queue)


def _wire_slowdown(heads: Sequence[QueuedExchange]) -> float:
    return _WIRE.slowdown([head.wire_share for head in heads]) if len(heads) > 1 else 1.0
