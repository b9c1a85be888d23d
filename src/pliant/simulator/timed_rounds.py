"""Rounds of one bucket's exchange as what each pair of ranks sends, in seconds; each rank has a host of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import KEYS, DenseExchange, Floats, Messages, PointToPoint, Round, Together
from pliant.netmodel.loading import Loading
from pliant.netmodel.rings import turn_s
from pliant.simulator.context import SimulationContext
from pliant.simulator.timed_exchange import TimedExchange

__all__ = ["TimedRound", "timed_rounds"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedRound:
    """A round of messages, in seconds."""

    links: Floats
    """(num_ranks, num_ranks): of the link from row to column."""
    out: Floats
    """(num_ranks,): of what a host sends, and receives."""
    into: Floats
    delays: Floats
    """(num_ranks, num_ranks); -inf where there is no message."""
    back: Floats | None = None
    """(num_ranks, num_ranks): delays of the words for which messages wait, back from column to row; else None."""
    whole: float = 0.0
    """Of a round in which all wait for all; else 0."""
    before: float = 0.0
    """Of work before the messages, and after them."""
    after: float = 0.0

    @cached_property
    def sent(self) -> NDArray[np.bool_]:
        """Whether there is a message from row to column, (num_ranks, num_ranks)."""
        return np.isfinite(self.delays)

    @cached_property
    def latest(self) -> Floats:
        """Longest delay of what a rank receives, (num_ranks,); -inf of nothing."""
        return self.delays.max(0)

    @cached_property
    def receives(self) -> bool:
        """Whether hosts have limits for what they receive."""
        return bool(self.into.any())


def timed_rounds(each: TimedExchange, context: SimulationContext) -> tuple[TimedRound, ...]:
    """Return the rounds of an exchange, found once."""
    key = id(each.of.rounds), each.index  # rounds that `SimulationContext.found` keeps
    if key not in context.timed_rounds:
        context.timed_rounds[key] = tuple(_rounds(each, context))
    return context.timed_rounds[key]


def _rounds(each: TimedExchange, context: SimulationContext) -> Iterator[TimedRound]:
    others_s, before_s = iter(each.of.others_s), float(context.coefficients[KEYS.index("buckets")])
    for of_round in each.of.rounds:
        before_s += _work_s(of_round.before, each.index, context)
        after_s = _work_s(of_round.after, each.index, context)
        if of_round.messages is not None:
            after_s += float(_of(next(others_s), each.index))
        found = list(_of_round(of_round, each.index, context))
        found[0] = replace(found[0], before=before_s)
        found[-1] = replace(found[-1], after=after_s)
        yield from found
        before_s = 0.0


def _of_round(each: Round, index: int, context: SimulationContext) -> Sequence[TimedRound]:
    """Return a round, as often as it comes, without its work."""
    links, nothing = context.links, np.zeros((context.num_ranks, context.num_ranks))
    silent = TimedRound(links=nothing, out=nothing[0], into=nothing[0], delays=nothing - np.inf)
    if each.messages is None:
        return [silent]
    num_bytes, ring = _bytes(each.messages, index, context.num_ranks), _is_ring(each.messages)
    if num_bytes is None or (each.repeat > 1 and not ring):
        took = links.load(each.messages, each.repeat, 0.0, posted=each.posted)
        return [replace(silent, whole=float(_of(took.busy_s + took.latency_s, index)))]
    sent, factor, shared = num_bytes > 0, context.overheads.wire_factor, context.overheads.sharing_factor
    own_s = nothing.copy()
    own_s[links.link_source, links.link_target] = links.link_s
    asked = replace(silent, delays=np.where(sent, links.delays_s, -np.inf), back=links.delays_s.T)
    if not ring:
        loads = Loading(links=links, opening=False, asks=False).of(each.messages)
        out = factor * _of(loads.out * links.out_s * shared(loads.flows_out), index)
        into = factor * _of(loads.into * links.in_s * shared(loads.flows_into), index)
        found = replace(asked, links=factor * num_bytes * own_s, out=out, into=into)
        return [replace(found, back=None) if each.posted else found]
    # Each host has one message out and one in. Segments wait for their round trip; the first ones that are added up,
    # and gathered, for the word that somebody waits for them.
    links_s = factor * num_bytes * np.maximum(own_s, np.maximum(links.out_s[:, None], links.in_s))
    trips_s = np.where(sent, links.delays_s + links.delays_s.T, 0.0)
    waits_s = turn_s(num_bytes.max(keepdims=True), context.num_ranks, trips_s, context.topology.connections)
    asked = replace(asked, links=np.maximum(links_s, links_s / 2 + waits_s))
    return [asked if k % (context.num_ranks - 1) == 0 else replace(asked, back=None) for k in range(each.repeat)]


def _is_ring(messages: Messages) -> bool:
    return isinstance(messages, PointToPoint) and messages.cyclic


def _bytes(messages: Messages, index: int, num_ranks: int) -> Floats | None:
    """Return the bytes of one bucket from row to column, (num_ranks, num_ranks); None if only sums are known."""
    if isinstance(messages, Together):
        parts = [_bytes(part, index, num_ranks) for part in messages.parts]
        known = [part for part in parts if part is not None]
        return np.sum(known, axis=0) if len(known) == len(parts) else None
    apart = 1 - np.eye(num_ranks)
    if isinstance(messages, PointToPoint):
        pairs = np.bincount(messages.source * num_ranks + messages.target, messages.share, num_ranks * num_ranks)
        return pairs.reshape(num_ranks, num_ranks) * _of(messages.num_bytes, index) * apart
    if isinstance(messages, DenseExchange):
        return np.outer(_of(messages.give, index), _of(messages.take, index)) * apart
    return None


def _work_s(work: dict[str, Floats], index: int, context: SimulationContext) -> float:
    return float(sum(_of(amount, index) * context.coefficients[KEYS.index(key)] for key, amount in work.items()))


def _of(x: Floats, index: int) -> Floats:
    """Return the row of a bucket, of rows that may stand for all."""
    return x[index if len(x) > 1 else 0]
