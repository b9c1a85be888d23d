"""Messages that travel at once, between many ranks, for many buckets, in little memory."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Pairs", "Product", "Round"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_ROUNDING = 1e-6
"""Of a byte: what remains of fractions that are whole numbers in truth."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Messages between named ranks: message k has `share[k] * num_bytes[b]` bytes for bucket b."""

    source: Ints
    """(num_messages,) ranks."""
    target: Ints
    """(num_messages,) ranks."""
    share: Floats
    """(num_messages,)"""
    num_bytes: Floats
    """(num_buckets,)"""
    cyclic: bool = False
    """Whether what a rank sends next waits only for what it gets, around a cycle: then latencies do not add up to the
    largest in each round, but to their mean."""

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return self.num_bytes[:, None] * np.bincount(self.source, self.share, num_ranks)

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return self.num_bytes[:, None] * np.bincount(self.target, self.share, num_ranks)

    def count(self, num_ranks: int) -> Floats:
        """Return how many messages the busiest rank sends and receives, (num_buckets,)."""
        ends = np.bincount(self.source, minlength=num_ranks) + np.bincount(self.target, minlength=num_ranks)
        return np.where(self.num_bytes > 0, float(ends.max(initial=0)), 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """Messages from every rank to every other: i sends `give[b, i] * take[b, j]` bytes to j for bucket b.

    So all-to-all, all-gather, broadcast, and what owners get and send need n numbers, not n^2.
    """

    give: Floats
    """(num_buckets, num_ranks)"""
    take: Floats
    """(num_buckets, num_ranks)"""

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return self.give * (self.take.sum(1, keepdims=True) - self.take)

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return self.take * (self.give.sum(1, keepdims=True) - self.give)

    def count(self, num_ranks: int) -> Floats:
        """Return how many messages the busiest rank sends and receives, (num_buckets,)."""
        gives, takes = self.give > 0, self.take > 0
        sends = gives * (takes.sum(1, keepdims=True) - takes)
        receives = takes * (gives.sum(1, keepdims=True) - gives)
        return (sends + receives).max(1, initial=0).astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Messages that travel at once, and what the busiest rank computes before and after them.

    Work is counted in elements (of what a codec sees) or bytes, under the names of `costs.KEYS`, (num_buckets,) each.
    Where a message is cut into pieces, neighbouring stages overlap: of the last `after_share` of the messages, in
    `after_pieces` pieces, each is worked on while the next is on its way.
    """

    messages: Pairs | Product | None
    """None where ranks only compute."""
    repeat: int = 1
    """How often, one after another, such as 2 (n - 1) times around a ring."""
    before: dict[str, Floats] = field(default_factory=dict[str, Floats])
    before_pieces: Floats | None = None
    """(num_buckets,): how many pieces leave one by one while the next is worked on."""
    after: dict[str, Floats] = field(default_factory=dict[str, Floats])
    after_pieces: Floats | None = None
    after_share: float = 1.0
    split: Floats | None = None
    """(num_buckets,): in how many messages each of `messages` really goes."""

    def sent(self, num_ranks: int) -> Floats:
        """Return whole bytes out of each rank, (num_buckets, num_ranks)."""
        if self.messages is None:
            return np.zeros((1, num_ranks))
        return np.floor(self.messages.sent(num_ranks) * self.repeat + _ROUNDING)

    def received(self, num_ranks: int) -> Floats:
        """Return whole bytes into each rank, (num_buckets, num_ranks)."""
        if self.messages is None:
            return np.zeros((1, num_ranks))
        return np.floor(self.messages.received(num_ranks) * self.repeat + _ROUNDING)
