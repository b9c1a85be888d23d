"""Rounds of one bucket's exchange as what each pair of ranks sends, in seconds; each rank has a host of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import KEYS, DenseExchange, Floats, HostExchange, PointToPoint, Round, Together
from pliant.netmodel.loading import Loading
from pliant.netmodel.rings import hold_s, turn_s
from pliant.simulator.context import SimulationContext
from pliant.simulator.timed_exchange import TimedExchange

__all__ = ["TimedRound", "timed_rounds"]

_Pairs: TypeAlias = PointToPoint | DenseExchange
_Messages: TypeAlias = _Pairs | HostExchange | Together


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedRound:
    """A round of messages, in seconds."""

    links: Floats
    """(num_ranks, num_ranks): of the link from row to column."""
    turns: Floats | None = None
    """(num_ranks, num_ranks): from the start of a message on a link to that of the next one; as `links` if None."""
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
    parts, ring = _parts_of(each.messages, index), isinstance(each.messages, PointToPoint) and each.messages.cyclic
    if not parts or (each.repeat > 1 and not ring):
        took = links.load(each.messages, each.repeat, 0.0, posted=each.posted)
        return [replace(silent, whole=float(_of(took.busy_s + took.latency_s, index)))]
    num_bytes = np.sum([_bytes(part, context.num_ranks) for part in parts], axis=0)
    sent, factor, shared = num_bytes > 0, context.overheads.wire_factor, context.overheads.sharing_factor
    own_s = nothing.copy()
    own_s[links.link_source, links.link_target] = links.link_s
    asked = replace(silent, delays=np.where(sent, links.delays_s, -np.inf), back=links.delays_s.T)
    if not ring:
        loads = Loading(links=links, opening=False, asks=False).of(Together(parts=parts))
        out = factor * (loads.out * links.out_s * shared(loads.flows_out))[0]
        into = factor * (loads.into * links.in_s * shared(loads.flows_into))[0]
        found = replace(asked, links=factor * num_bytes * own_s, out=out, into=into)
        return [replace(found, back=None) if each.posted else found]
    # Each host has one message out and one in. The next segments over a link wait for a round trip, and the first ones
    # for the word that somebody waits for them; they arrive once they have passed the link.
    links_s = factor * num_bytes * np.maximum(own_s, np.maximum(links.out_s[:, None], links.in_s))
    trips_s = np.where(sent, links.delays_s + links.delays_s.T, 0.0)
    waits_s = turn_s(num_bytes.max(keepdims=True), context.num_ranks, trips_s, context.topology.connections)
    asked = replace(asked, links=links_s, turns=hold_s(links_s, waits_s))
    return [asked, *[replace(asked, back=None)] * (each.repeat - 1)]


def _parts_of(messages: _Messages, index: int) -> tuple[_Pairs, ...]:
    """Return the messages of one bucket; nothing where only sums over ranks are known."""
    if isinstance(messages, HostExchange):
        return ()
    parts = messages.parts if isinstance(messages, Together) else (messages,)
    return tuple(_of_bucket(part, index) for part in parts)


def _of_bucket(messages: _Pairs, index: int) -> _Pairs:
    if isinstance(messages, PointToPoint):
        return replace(messages, num_bytes=_of(messages.num_bytes, index)[None])
    give, take = _of(messages.give, index)[None], _of(messages.take, index)[None]
    rotated = messages.rotated if isinstance(messages.rotated, bool) else _of(messages.rotated, index)
    return replace(messages, give=give, take=take, rotated=rotated)


def _bytes(messages: _Pairs, num_ranks: int) -> Floats:
    """Return the bytes of one bucket from row to column, (num_ranks, num_ranks)."""
    apart = 1 - np.eye(num_ranks)
    if isinstance(messages, PointToPoint):
        pairs = np.bincount(messages.source * num_ranks + messages.target, messages.share, num_ranks * num_ranks)
        return pairs.reshape(num_ranks, num_ranks) * messages.num_bytes[0] * apart
    return np.outer(messages.give, messages.take) * apart


def _work_s(work: dict[str, Floats], index: int, context: SimulationContext) -> float:
    return float(sum(_of(amount, index) * context.coefficients[KEYS.index(key)] for key, amount in work.items()))


def _of(x: NDArray[Any], index: int) -> NDArray[Any]:
    """Return the row of a bucket, of rows that may stand for all."""
    return x[index if len(x) > 1 else 0]
