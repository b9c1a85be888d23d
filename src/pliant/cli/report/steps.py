"""Figures of a timeline: what each step and each bucket took, waited for and sent. Pure."""

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from pliant.spec import Event, Timeline

__all__ = ["BucketTimes", "Step", "buckets_of", "clip_event", "events_in", "median_step", "merge_timelines", "steps_of"]

_K = TypeVar("_K")

_COMPUTING = ("forward", "backward", "optimize", "wait")
"""Kinds of events of the training thread, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of one rank, which begins at the end of the one before."""

    rank: int
    step: int
    start_s: float
    end_s: float
    exposed_s: float
    """Seconds that it waited for exchanges."""
    exchange_s: float
    """Seconds of its exchanges, hidden or not."""
    codec_s: float
    """Seconds of computing for its exchanges: encoding, adding up, decoding."""
    sent_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds from one step to the next."""
        return self.end_s - self.start_s

    @property
    def compute_s(self) -> float:
        """Seconds that are left without waits."""
        return self.seconds - self.exposed_s


@dataclass(frozen=True, kw_only=True)
class BucketTimes:
    """Times of the exchanges of one bucket in a step, as a mean over steps."""

    name: str
    exchange_s: float
    codec_s: float
    exposed_s: float
    """The part of exchange_s in which the rank did nothing else than wait."""
    sent_bytes: float


def steps_of(timeline: Timeline, rank: int) -> list[Step]:
    """Return the steps of a rank, in order. Step k ends with the last thing that the thread that trains did in it."""
    mine = [event for event in timeline.events if event.rank == rank]
    ends_s: dict[int, float] = {}
    for event in mine:
        if event.kind in _COMPUTING:
            ends_s[event.step] = max(event.end_s, ends_s.get(event.step, 0.0))
    steps: list[Step] = []
    start_s, by_step = 0.0, _grouped(mine, lambda event: event.step)
    for step, end_s in sorted(ends_s.items()):
        own = by_step[step]
        steps.append(
            Step(
                rank=rank,
                step=step,
                start_s=start_s,
                end_s=end_s,
                exposed_s=_seconds(own, "wait"),
                exchange_s=_seconds(own, "exchange"),
                codec_s=_seconds(own, "encode", "decode"),
                sent_bytes=sum(event.sent_bytes for event in own),
            )
        )
        start_s = end_s
    return steps


def buckets_of(timeline: Timeline, steps: Sequence[Step]) -> list[BucketTimes]:
    """Return what each bucket's exchanges come to in these steps of one rank, in the order in which they first end."""
    wanted, rank = {step.step for step in steps}, steps[0].rank
    mine = [event for event in timeline.events if event.rank == rank and event.step in wanted]
    exposed_s_of = _exposure([event for event in timeline.events if event.rank == rank and event.kind == "wait"])
    by_name = _grouped(mine, lambda event: event.name)
    found: list[BucketTimes] = []
    for name in dict.fromkeys(event.name for event in mine if event.kind == "exchange"):
        own = by_name[name]
        exchanges = [event for event in own if event.kind == "exchange"]
        exposed_s = sum(map(exposed_s_of, exchanges))
        found.append(
            BucketTimes(
                name=name,
                exchange_s=_seconds(exchanges, "exchange") / len(steps),
                codec_s=_seconds(own, "encode", "decode") / len(steps),
                exposed_s=exposed_s / len(steps),
                sent_bytes=sum(event.sent_bytes for event in own) / len(steps),
            )
        )
    return found


def median_step(steps: Sequence[Step]) -> Step:
    """Return the step that stands for all: of those that exchange, or else of all, the one of median length."""
    median_s = statistics.median_low(step.seconds for step in _that_exchange(steps))
    return next(step for step in _that_exchange(steps) if step.seconds == median_s)


def events_in(timeline: Timeline, ranks: Sequence[int], start_s: float, end_s: float) -> list[Event]:
    """Return what happened between two moments, cut to them, with times from the first."""
    return [
        clip_event(event, start_s, end_s)
        for event in timeline.events
        if event.rank in ranks and event.start_s < end_s and event.end_s > start_s
    ]


def clip_event(event: Event, start_s: float, end_s: float) -> Event:
    """Return an event cut to two moments, with times from the first."""
    return replace(event, start_s=max(0.0, event.start_s - start_s), end_s=min(event.end_s, end_s) - start_s)


def merge_timelines(timelines: Sequence[Timeline]) -> Timeline:
    """Return the timelines of a run's ranks as one, with times from the earliest start, by the clocks of machines."""
    first_s = min(timeline.began_unix_s for timeline in timelines)
    events: list[Event] = []
    for timeline in timelines:
        shift_s = timeline.began_unix_s - first_s
        events += [replace(e, start_s=e.start_s + shift_s, end_s=e.end_s + shift_s) for e in timeline.events]
    events.sort(key=lambda event: event.end_s)
    return replace(timelines[0], events=tuple(events), began_unix_s=first_s)


def _that_exchange(steps: Sequence[Step]) -> Sequence[Step]:
    return [step for step in steps if step.exchange_s or step.sent_bytes] or steps


def _seconds(events: Sequence[Event], *kinds: str) -> float:
    return sum(event.end_s - event.start_s for event in events if event.kind in kinds)


def _grouped(events: Iterable[Event], key_of: Callable[[Event], _K]) -> dict[_K, list[Event]]:
    """Return the events of each key, in their order: a recording may have hundreds of thousands."""
    found: defaultdict[_K, list[Event]] = defaultdict(list)
    for event in events:
        found[key_of(event)].append(event)
    return found


def _exposure(waits: Sequence[Event]) -> Callable[[Event], float]:
    """Return a function that says how long an event lay within waits, and looks at those alone that meet it."""
    waits = sorted(waits, key=lambda wait: wait.start_s)
    starts_s = [wait.start_s for wait in waits]
    ends_s = list(accumulate((wait.end_s for wait in waits), max))  # of all up to each, so that they are in order

    def exposed_s(event: Event) -> float:
        meeting = waits[bisect_right(ends_s, event.start_s) : bisect_left(starts_s, event.end_s)]
        return sum(_overlap_s(event, wait) for wait in meeting)

    return exposed_s


def _overlap_s(one: Event, other: Event) -> float:
    return max(0.0, min(one.end_s, other.end_s) - max(one.start_s, other.start_s))
