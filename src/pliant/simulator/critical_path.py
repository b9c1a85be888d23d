"""Backwards through a simulation: what each moment waited for."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.simulator.rank_clock import QueuedExchange, RankActivity

__all__ = ["CriticalSegment", "critical_path"]


@dataclass(frozen=True, kw_only=True)
class CriticalSegment:
    """A stretch of the critical path."""

    name: str
    """'forward', 'backward', 'optimize', or the exchange."""
    seconds: float
    item: QueuedExchange | None = None


def critical_path(segments: Sequence[RankActivity], from_s: float, until_s: float) -> list[CriticalSegment]:
    """Return what took the time between two moments, in order: nothing beside it could have made it shorter.

    Where the rank waited, the path follows the exchange, and those before it in its queue, back to when the first of
    them was handed over; there the rank was computing.
    """
    legs: list[CriticalSegment] = []
    now_s, k = until_s, len(segments) - 1
    while now_s > from_s and k >= 0:
        segment = segments[k]
        if segment.start_s >= now_s:
            k -= 1
        elif segment.item is None:
            legs.append(CriticalSegment(name=segment.kind, seconds=now_s - max(segment.start_s, from_s)))
            now_s, k = segment.start_s, k - 1
        else:
            now_s = _through_lane(segment.item, now_s, from_s, legs)
    return legs[::-1]


def _through_lane(last: QueuedExchange, now_s: float, from_s: float, legs: list[CriticalSegment]) -> float:
    item: QueuedExchange | None = last
    while item is not None and now_s > from_s:
        start_s = max(item.start_s, from_s)
        if now_s > start_s:
            legs.append(CriticalSegment(name=item.label, seconds=now_s - start_s, item=item))
        now_s = min(now_s, item.start_s)
        if item.arrival_s >= item.start_s:
            break
        item = item.before
    return now_s
