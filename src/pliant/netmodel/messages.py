"""Messages that are sent at once, between many ranks, for many buckets, in little memory."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["DenseExchange", "Floats", "HostExchange", "Ints", "Messages", "PointToPoint", "RankMatrix", "Together"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PointToPoint:
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
    """Whether message k + 1 begins where message k ends, around a ring, where a rank waits only for the message before
    its own. Repeated rounds then take the delay of the longest path of so many hops, not so many times the largest
    delay."""
    ring_ranks: int = 0
    """Ranks of each ring, where repeated rounds sum or gather around rings, which NCCL does in its own way; 0: none."""

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return self.num_bytes[:, None] * np.bincount(self.source, self.share, num_ranks)

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return self.num_bytes[:, None] * np.bincount(self.target, self.share, num_ranks)

    def handled(self, num_ranks: int) -> Floats:
        """Return how many messages each rank sends and receives, (num_buckets, num_ranks)."""
        ends = np.bincount(self.source, minlength=num_ranks) + np.bincount(self.target, minlength=num_ranks)
        return (self.num_bytes > 0)[:, None] * ends.astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseExchange:
    """Messages from every rank to every other: i sends `give[b, i] * take[b, j]` bytes to j for bucket b.

    So all-to-all, all-gather, broadcast, and messages to and from owners need n numbers, not n^2.
    """

    give: Floats
    """(num_buckets, num_ranks)"""
    take: Floats
    """(num_buckets, num_ranks)"""
    rotated: bool | NDArray[np.bool_] = False
    """Whether each rank serves one other after another, and no two the same one: then a rank has one flow out and one
    in at a time, and not one for each of the others. For all buckets, or (num_buckets, 1)."""

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return self.give * (self.take.sum(1, keepdims=True) - self.take)

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return self.take * (self.give.sum(1, keepdims=True) - self.give)

    def handled(self, num_ranks: int) -> Floats:
        """Return how many messages each rank sends and receives, (num_buckets, num_ranks)."""
        gives, takes = self.give > 0, self.take > 0
        sends = gives * (takes.sum(1, keepdims=True) - takes)
        receives = takes * (gives.sum(1, keepdims=True) - gives)
        return (sends + receives).astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostExchange:
    """Messages all inside hosts, or all between hosts, of which sums over ranks are known: 2 n numbers and not n^2.

    Between hosts, h sends `give[b, h] * take[b, k]` bytes to k for bucket b. Each rank serves one other after another.
    """

    out: Floats
    """(num_buckets, num_ranks) bytes out of each rank."""
    into: Floats
    """(num_buckets, num_ranks) bytes into each rank."""
    num_messages: Floats
    """(num_buckets, num_ranks): messages that each rank sends and receives."""
    give: Floats
    """(num_buckets, num_hosts); zeros where all messages stay inside."""
    take: Floats
    """(num_buckets, num_hosts), likewise."""

    @property
    def stays_inside(self) -> bool:
        """Whether all messages stay inside hosts."""
        return not self.give.any()

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return self.out

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return self.into

    def handled(self, num_ranks: int) -> Floats:
        """Return how many messages each rank sends and receives, (num_buckets, num_ranks)."""
        return self.num_messages


@dataclass(frozen=True, kw_only=True, eq=False)
class Together:
    """Messages of several sets, all at once, such as those of groups of ranks that exchange side by side."""

    parts: "tuple[PointToPoint | DenseExchange, ...]"
    """At least one; of the same buckets."""

    def sent(self, num_ranks: int) -> Floats:
        """Return the bytes out of each rank, (num_buckets, num_ranks)."""
        return sum((part.sent(num_ranks) for part in self.parts), np.zeros((1, num_ranks)))

    def received(self, num_ranks: int) -> Floats:
        """Return the bytes into each rank, (num_buckets, num_ranks)."""
        return sum((part.received(num_ranks) for part in self.parts), np.zeros((1, num_ranks)))

    def handled(self, num_ranks: int) -> Floats:
        """Return how many messages each rank sends and receives, (num_buckets, num_ranks)."""
        return sum((part.handled(num_ranks) for part in self.parts), np.zeros((1, num_ranks)))


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMatrix:
    """Messages between all pairs of ranks, counted or expected; the diagonal is ignored."""

    num_bytes: Floats
    """(num_buckets, num_ranks, num_ranks): from row to column."""
    num_messages: Floats
    """(num_buckets, num_ranks, num_ranks): expected messages may be fractions."""


Messages = PointToPoint | DenseExchange | HostExchange | Together | RankMatrix
