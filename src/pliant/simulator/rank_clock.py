"""The clock: one rank that computes, and queues beside it in which exchanges run one after another."""

from collections import deque
from dataclasses import dataclass

__all__ = ["QueuedExchange", "RankActivity", "RankClock"]

_EPS = 1e-15


@dataclass(kw_only=True, eq=False)
class QueuedExchange:
    """An exchange in a queue."""

    label: str
    seconds: float
    """By itself."""
    row: int
    """Which exchange of the simulation it is."""
    step: int
    remaining: float = 0.0
    before: "QueuedExchange | None" = None
    """What was in front of it when it came."""
    arrival_s: float = 0.0
    start_s: float = -1.0
    end_s: float = -1.0

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.end_s >= 0


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """Time of the rank itself: compute, or wait for an item."""

    kind: str
    step: int
    start_s: float
    end_s: float
    item: QueuedExchange | None = None


class RankClock:
    """Simulated time of a rank and its queues.

    While the rank computes and a queue is busy, computing is slower by one factor and the exchange by another: two
    fluids that hinder each other. Making an exchange or a computation shorter never makes anything later.

    Args:
        num_lanes: Lanes, each first in, first out.
        compute_overlap: How much longer computing takes beside an exchange.
        exchange_overlap: How much longer an exchange takes beside computing.

    """

    def __init__(self, num_lanes: int, compute_overlap: float, exchange_overlap: float) -> None:
        self.now_s = 0.0
        self._queues: list[deque[QueuedExchange]] = [deque() for _ in range(num_lanes)]
        self._last: list[QueuedExchange | None] = [None] * num_lanes
        self._compute_overlap, self._exchange_overlap = compute_overlap, exchange_overlap
        self.segments: list[RankActivity] = []
        self.items: list[QueuedExchange] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is in any queue."""
        return not any(self._queues)

    def submit(self, queue_name: int, item: QueuedExchange) -> QueuedExchange:
        """Put an item at the end of a queue, now."""
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
        """Compute for so long, and submit items to queues at offsets of it, in order: (offset_s, queue, item)."""
        from_s, progress = self.now_s, 0.0
        for offset, queue_name, item in arrivals or ():
            progress = self._compute_until(progress, offset)
            self.submit(queue_name, item)
        self._compute_until(progress, seconds)
        self.segments.append(RankActivity(kind=kind, step=step, start_s=from_s, end_s=self.now_s))

    def wait(self, item: QueuedExchange, step: int) -> None:
        """Do nothing until an item has ended."""
        if item.done:
            return
        from_s = self.now_s
        while not item.done:
            self._pass(min(queue[0].remaining for queue in self._queues if queue), 1.0)
        self.segments.append(RankActivity(kind="wait", step=step, start_s=from_s, end_s=self.now_s, item=item))

    def _compute_until(self, progress: float, target: float) -> float:
        while progress < target:
            heads = [queue[0] for queue in self._queues if queue]
            slow = self._compute_overlap if heads else 1.0
            whole_s = (target - progress) * slow
            next_s = min([head.remaining * self._exchange_overlap for head in heads], default=whole_s)
            if next_s < whole_s:
                self._pass(next_s, self._exchange_overlap)
                progress += next_s / slow
            else:
                self._pass(whole_s, self._exchange_overlap)
                progress = target
        return max(progress, target)

    def _pass(self, seconds: float, slow: float) -> None:
        """Let time pass in which no queue does more than end the item at its front."""
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
