"""Rounds of collectives: ring, all-gather and the like."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pliant.layouts.division import num_hops
from pliant.netmodel import DenseExchange, Floats, Ints, PointToPoint, Round, Together

__all__ = ["among_ranks", "average", "ring", "ring_all_gather", "to_and_from", "tree"]


def ring(num_bytes: Floats, num_ranks: int) -> Round:
    """All-reduce around a ring (Patarasuk and Yuan 2009): 2 (n-1) rounds, each rank sends 1/n to the one before it.

    That is the direction of Gloo's all-reduce, which matters where links differ; its all-gather goes the other way.

    Args:
        num_bytes: Of the vectors, (num_buckets,).
        num_ranks: n.

    """
    ranks = np.arange(num_ranks)[::-1]
    share = np.full(num_ranks, 1 / num_ranks)
    pairs = PointToPoint(source=ranks, target=(ranks - 1) % num_ranks, share=share, num_bytes=num_bytes, cyclic=True)
    added = num_bytes * (num_ranks - 1) / num_ranks
    return Round(messages=pairs, repeat=2 * (num_ranks - 1), after={"reduce_bytes": added})


def ring_all_gather(num_bytes: Floats, num_ranks: int) -> Round:
    """All-gather of `num_bytes` from each rank, (num_buckets,), in n-1 rounds: each rank passes on its last message."""
    ranks = np.arange(num_ranks)
    share = np.ones(num_ranks)
    pairs = PointToPoint(source=ranks, target=(ranks + 1) % num_ranks, share=share, num_bytes=num_bytes, cyclic=True)
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


def average(
    numel: Floats, num_ranks: int, *, value_bytes: int = 4, in_parts: bool = False, by_ring: bool = False
) -> list[Round]:
    """Return the rounds of `ShortVectorAverage` on vectors of `numel` elements, (num_buckets,).

    One hop, two, or a ring; `by_ring` leaves the ring alone, for sums that go by a schedule in its place.
    """
    hops = np.array([0 if by_ring else num_hops(int(k), num_ranks, in_parts=in_parts) for k in numel])
    everybody = np.ones((1, num_ranks))
    rounds: list[Round] = []
    if (hops == 1).any():
        size = float(value_bytes) * numel * (hops == 1)
        take = np.repeat(size[:, None], num_ranks, 1)
        added = {"reduce_bytes": size * (num_ranks - 1)}
        rounds.append(Round(messages=DenseExchange(give=everybody, take=take), after=added))
    if (hops == 2).any():
        held = numel * (hops == 2)
        edges = np.minimum(np.ceil(held / num_ranks)[:, None] * np.arange(num_ranks + 1), held[:, None])
        part = value_bytes * np.diff(edges, axis=1)  # (num_buckets, num_ranks)
        rounds += to_and_from(part, {"reduce_bytes": part.max(1) * (num_ranks - 1)})
    if (hops == 0).any():
        rounds.append(ring(float(value_bytes) * numel * (hops == 0), num_ranks))
    return rounds


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
