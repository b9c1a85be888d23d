"""Rounds of collectives: ring, all-gather and the like."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pliant.layouts.rounds import average_form, gathers_in_rounds, is_short, rounds_among
from pliant.netmodel import DenseExchange, Floats, HostExchange, Ints, PointToPoint, Round, Together
from pliant.spec.slices import MOST_STRAIGHT_PEERS

__all__ = [
    "all_gather",
    "all_to_all_in_rounds",
    "among_ranks",
    "average",
    "broadcast",
    "gather_in_rounds",
    "gather_of_few",
    "not_posted",
    "of_buckets",
    "ring",
    "ring_all_gather",
    "to_and_from",
    "tree",
]


def ring(num_bytes: Floats, num_ranks: int) -> Round:
    """All-reduce around a ring (Patarasuk and Yuan 2009): 2 (n-1) rounds, each rank sends 1/n to the one before it.

    That is the direction of Gloo's all-reduce, which matters where links differ; its all-gather goes the other way.

    Args:
        num_bytes: Of the vectors, (num_buckets,).
        num_ranks: n.

    """
    ranks = np.arange(num_ranks)[::-1]
    share = np.full(num_ranks, 1 / num_ranks)
    pairs = PointToPoint(
        source=ranks,
        target=(ranks - 1) % num_ranks,
        share=share,
        num_bytes=num_bytes,
        cyclic=True,
        ring_ranks=num_ranks,
    )
    added = num_bytes * (num_ranks - 1) / num_ranks
    return Round(messages=pairs, repeat=2 * (num_ranks - 1), after={"reduce_bytes": added})


def ring_all_gather(num_bytes: Floats, num_ranks: int) -> Round:
    """All-gather of `num_bytes` from each rank, (num_buckets,), in n-1 rounds: each rank passes on its last message."""
    ranks = np.arange(num_ranks)
    share = np.ones(num_ranks)
    pairs = PointToPoint(
        source=ranks,
        target=(ranks + 1) % num_ranks,
        share=share,
        num_bytes=num_bytes,
        cyclic=True,
        ring_ranks=num_ranks,
    )
    return Round(messages=pairs, repeat=num_ranks - 1)


def tree(num_bytes: Floats, num_ranks: int) -> list[Round]:
    """All-reduce up and down a binomial tree: 2 ceil(log2 n) rounds of whole vectors."""
    rounds: list[Round] = []
    distance = 1
    while distance < num_ranks:
        low = np.arange(0, num_ranks - distance, 2 * distance)
        up = PointToPoint(source=low + distance, target=low, share=np.ones(len(low)), num_bytes=num_bytes)
        rounds.append(Round(messages=up, after={"reduce_bytes": num_bytes}))
        distance *= 2
    down = [Round(messages=_reverse(r.messages)) for r in reversed(rounds) if isinstance(r.messages, PointToPoint)]
    return [*rounds, *down]


def broadcast(num_bytes: Floats, num_ranks: int, *, by_tree: bool = False) -> list[Round]:
    """Broadcast of `num_bytes`, (num_buckets,): short ones in rounds, others, or all, down a binomial tree.

    Bytes are means over all ranks as the root, messages those of the root.
    """
    short = np.array([is_short(size) and not by_tree for size in num_bytes])
    ranks, depth = np.arange(num_ranks), max(1, (num_ranks - 1).bit_length())
    share = np.full(num_ranks, (num_ranks - 1) / num_ranks / depth)
    pairs = PointToPoint(source=ranks, target=(ranks + 1) % num_ranks, share=share, num_bytes=num_bytes)
    return [
        *of_buckets(short, not_posted(gather_in_rounds(num_bytes / num_ranks, num_ranks))),  # the root may change
        *of_buckets(~short, [Round(messages=pairs, repeat=depth, posted=True)]),  # measured: one round trip at depth 2
    ]


def gather_in_rounds(num_bytes: Floats, num_ranks: int) -> list[Round]:
    """All-gather of `num_bytes` from each rank, (num_buckets,), as `RoundsComm` does it."""
    return [
        _among_all([(-at, count) for at, count, _ in hops], num_bytes, num_ranks) for hops in rounds_among(num_ranks)
    ]


def all_to_all_in_rounds(num_bytes: Floats, num_ranks: int) -> list[Round]:
    """All-to-all of rows of `num_bytes`, (num_buckets,), by way of other ranks, as `RoundsComm` does it."""
    return [
        _among_all([(hop.distance, len(hop.rows)) for hop in hops], num_bytes, num_ranks)
        for hops in rounds_among(num_ranks)
    ]


def _sum_in_rounds(num_bytes: Floats, num_ranks: int) -> list[Round]:
    """Reduce-scatter of rows of `num_bytes`, (num_buckets,), as `RoundsComm` does it."""
    return [
        replace(
            _among_all([(at, count) for at, count, _ in hops], num_bytes, num_ranks),
            after={"reduce_bytes": num_bytes * sum(hop.num_rows for hop in hops)},
        )
        for hops in reversed(rounds_among(num_ranks))
    ]


def _among_all(hops: Sequence[tuple[int, int]], num_bytes: Floats, num_ranks: int) -> Round:
    """Return the round in which each rank sends `count` rows to the rank `distance` further, for each hop.

    It comes again in every exchange, so that receives stand (`StandingReceives`).
    """
    distance, count = np.array(hops, dtype=np.int64).T
    source = np.repeat(np.arange(num_ranks), len(hops))
    target = (source + np.tile(distance, num_ranks)) % num_ranks
    share = np.tile(count, num_ranks).astype(np.float64)
    messages = PointToPoint(source=source, target=target, share=share, num_bytes=num_bytes)
    return Round(messages=messages, posted=True)


def gather_of_few(num_bytes: Floats, num_ranks: int) -> Round:
    """All-gather of few numbers, `num_bytes` from each rank, (num_buckets,), as `gather_small` does it over Gloo."""
    if not 1 < num_ranks <= MOST_STRAIGHT_PEERS:
        return ring_all_gather(num_bytes, num_ranks)
    return replace(_among_all([(at, 1) for at in range(1, num_ranks)], num_bytes, num_ranks), posted=False)


def all_gather(num_bytes: Floats, num_ranks: int, *, by_ring: bool = False) -> list[Round]:
    """All-gather of `num_bytes` from each rank, (num_buckets,): some in few rounds, others, or all, around a ring."""
    in_rounds = np.array([not by_ring and gathers_in_rounds(size, num_ranks) for size in num_bytes])
    return [
        *of_buckets(in_rounds, gather_in_rounds(num_bytes, num_ranks)),
        *of_buckets(~in_rounds, [ring_all_gather(num_bytes, num_ranks)]),
    ]


def average(
    numel: Floats, num_ranks: int, *, value_bytes: int | Floats = 4, in_parts: bool = False, by_ring: bool = False
) -> list[Round]:
    """Return the rounds of `ShortVectorAverage` on vectors of `numel` elements, (num_buckets,), each in its form.

    `by_ring` leaves the ring alone, for sums that go by a schedule in its place.
    """
    forms = np.array(["ring" if by_ring else average_form(int(k), num_ranks, in_parts=in_parts) for k in numel])
    whole, part = value_bytes * numel, value_bytes * np.ceil(numel / num_ranks)
    *gather, last = gather_in_rounds(whole, num_ranks)
    by_form = {
        "gather": [*gather, replace(last, after={"reduce_bytes": whole * (num_ranks - 1)})],
        "halves": [*_sum_in_rounds(part, num_ranks), *gather_in_rounds(part, num_ranks)],
    }
    by_form["ring"] = [ring(whole, num_ranks)]
    return [each for form, rounds in by_form.items() for each in of_buckets((forms == form) & (numel > 0), rounds)]


def not_posted(rounds: Sequence[Round]) -> list[Round]:
    """Return rounds whose receivers tell that they wait when a round begins, as nobody knows it before."""
    return [replace(each, posted=False) for each in rounds]


def of_buckets(chosen: NDArray[np.bool_], rounds: Sequence[Round]) -> list[Round]:
    """Return rounds in which only the chosen buckets, (num_buckets,), send and compute; none if none is chosen."""
    if not chosen.any():
        return []
    return [
        replace(
            each,
            messages=None if each.messages is None else _messages_of(chosen, each.messages),
            before={key: x * chosen for key, x in each.before.items()},
            after={key: x * chosen for key, x in each.after.items()},
        )
        for each in rounds
    ]


def _messages_of(
    chosen: NDArray[np.bool_], messages: PointToPoint | DenseExchange | HostExchange | Together
) -> PointToPoint | DenseExchange:
    if isinstance(messages, Together | HostExchange):
        raise TypeError("groups of ranks side by side have rounds of their own; choose buckets before that.")
    if isinstance(messages, PointToPoint):
        return replace(messages, num_bytes=messages.num_bytes * chosen)
    return replace(messages, give=messages.give * chosen[:, None])


def to_and_from(part: Floats, between: dict[str, Floats], back: Floats | None = None) -> list[Round]:
    """Send each owner its part, (num_buckets, num_ranks) bytes, from all; let it work; and send the result to all.

    The result has as many bytes as the part, or those of `back`.
    """
    everybody = np.ones((1, part.shape[1]))
    up = Round(messages=DenseExchange(give=everybody, take=part), after=between)
    return [up, Round(messages=DenseExchange(give=part if back is None else back, take=everybody))]


def among_ranks(rounds: Sequence[Round], ranks: Ints, num_ranks: int) -> list[Round]:
    """Let the given ranks of a larger group do what 0, 1, ... do in `rounds`."""
    found: list[Round] = []
    for each in rounds:
        messages = each.messages
        if isinstance(messages, HostExchange):
            raise TypeError("ranks of all hosts are meant, and have no places in a larger group.")
        if isinstance(messages, Together):
            messages = Together(parts=tuple(_renamed(part, ranks, num_ranks) for part in messages.parts))
        elif messages is not None:
            messages = _renamed(messages, ranks, num_ranks)
        found.append(replace(each, messages=messages))
    return found


def _renamed(messages: PointToPoint | DenseExchange, ranks: Ints, num_ranks: int) -> PointToPoint | DenseExchange:
    if isinstance(messages, PointToPoint):
        return replace(messages, source=ranks[messages.source], target=ranks[messages.target])
    give, take = (_spread(x, ranks, num_ranks) for x in (messages.give, messages.take))
    return replace(messages, give=give, take=take)


def _spread(x: Floats, ranks: Ints, num_ranks: int) -> Floats:
    wide = np.zeros((len(x), num_ranks))
    wide[:, ranks] = x
    return wide


def _reverse(pairs: PointToPoint) -> PointToPoint:
    return PointToPoint(source=pairs.target, target=pairs.source, share=pairs.share, num_bytes=pairs.num_bytes)
