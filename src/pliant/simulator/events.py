"""A simulation as a timeline of events."""

from dataclasses import replace

from pliant.simulator.prepared import PreparedPlan
from pliant.simulator.rank_clock import QueuedExchange, RankActivity
from pliant.simulator.stepping import Stepper
from pliant.simulator.timed_exchange import TimedExchange
from pliant.spec import Event, Timeline

__all__ = ["timeline_of"]

_MOST_RANKS = 8
"""Most ranks in a timeline; others look the same."""


def timeline_of(stepper: Stepper, prepared: PreparedPlan) -> Timeline:
    """Return the events of the first ranks, in the order in which they ended."""
    context = prepared.context
    events: list[Event] = []
    for rank in range(min(context.num_ranks, _MOST_RANKS)):
        events += _compute_events(rank, stepper.clock.segments, context.slowdown[rank] / context.slowest)
        for item in stepper.clock.items:
            if item.done:
                events += _exchange_events(rank, item, stepper.exchanged[item.row])
    events.sort(key=lambda event: event.end_s)
    return Timeline(events=tuple(events), provenance="simulated")


def _compute_events(rank: int, segments: list[RankActivity], pace: float) -> list[Event]:
    """Return what one rank computes, and how long it then waits for exchanges or for the slowest."""
    events: list[Event] = []
    ahead_s = 0.0
    """How far this rank is in front of the slowest, since both last waited."""
    for k, segment in enumerate(segments):
        start_s = segment.start_s - ahead_s
        end_s = segment.end_s if segment.kind == "wait" else start_s + pace * (segment.end_s - segment.start_s)
        ahead_s = segment.end_s - end_s
        if end_s > start_s:
            events.append(_event(rank, segment.step, segment.kind, segment.kind, start_s, end_s))
        if ahead_s > 0 and (k + 1 == len(segments) or segments[k + 1].step != segment.step):
            events.append(_event(rank, segment.step, "wait", "wait for the slowest", end_s, segment.end_s))
            ahead_s = 0.0
    return events


def _exchange_events(rank: int, item: QueuedExchange, exchanged: TimedExchange) -> list[Event]:
    index = exchanged.index
    sent, received = int(exchanged.of.sent[index, rank]), int(exchanged.of.received[index, rank])
    stretched = (item.end_s - item.start_s) / exchanged.seconds if exchanged.seconds else 1.0
    whole = _event(rank, item.step, "exchange", item.label, item.start_s, item.end_s)
    parts = [
        _event(
            rank,
            item.step,
            stage.kind,
            item.label,
            item.start_s + stretched * float(stage.start_s[index]),
            item.start_s + stretched * float(stage.end_s[index]),
        )
        for stage in exchanged.of.stages
        if stage.end_s[index] > stage.start_s[index]
    ]
    messages = [k for k, event in enumerate(parts) if event.kind == "communicate"]
    if messages:  # bytes of an exchange are written to its first messages
        k = messages[0]
        parts[k] = replace(parts[k], sent_bytes=sent, received_bytes=received)
    return [whole, *parts]


def _event(rank: int, step: int, kind: str, name: str, start_s: float, end_s: float) -> Event:
    return Event(rank=rank, step=step, kind=kind, name=name, start_s=start_s, end_s=end_s)  # pyright: ignore[reportArgumentType]
