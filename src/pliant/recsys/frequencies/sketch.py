"""Bounded memory for unbounded logs: the most frequent rows with a bound, and a hashed sample of rows counted exactly.

Both hold sorted ids with counts, both merge, and both are exact until they are full.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.hashing import hashed

__all__ = ["HashedSample", "MisraGries", "RowCounts"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_SEED = 20_250


@dataclass(frozen=True)
class RowCounts:
    """Different row ids, ascending, int64 (rows,), and how often each was looked up, float64 (rows,): exact to 2^53."""

    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, ids: Ids) -> Self:
        """Count ids (k,) in any order."""
        found, counts = np.unique(ids, return_counts=True)
        return cls(found, counts.astype(np.float64))

    def __add__(self, other: "RowCounts") -> "RowCounts":
        if not self.ids.size or not other.ids.size:
            return self if self.ids.size else other
        place = np.minimum(np.searchsorted(self.ids, other.ids), self.ids.size - 1)
        known = self.ids[place] == other.ids
        counts = self.counts.copy()
        counts[place[known]] += other.counts[known]
        ids = np.concatenate([self.ids, other.ids[~known]])
        order = np.argsort(ids, kind="stable")
        return RowCounts(ids[order], np.concatenate([counts, other.counts[~known]])[order])

    def only(self, chosen: npt.NDArray[np.bool_]) -> "RowCounts":
        """Return the rows that a mask (rows,) chooses."""
        return RowCounts(self.ids[chosen], self.counts[chosen])


@dataclass(frozen=True, kw_only=True)
class MisraGries:
    """The most frequent rows in at most `capacity` counters: Misra and Gries' summary, which is Space-Saving with
    another name for the same state, batched and mergeable as by Agarwal et al. (Mergeable Summaries, PODS 2012).

    When there are more rows than counters, the (capacity + 1)-th largest count is taken off all of them, and what is
    not positive is dropped. So, of a row seen f times, `counts` says c with c <= f <= c + missed (0 for a row that is
    not here), and missed <= (lookups - sum of counts) / (capacity + 1); after any number of batches and merges.
    """

    capacity: int
    rows: RowCounts = field(default_factory=RowCounts)
    missed: float = 0.0

    def add(self, other: "MisraGries | RowCounts") -> "MisraGries":
        """Take in a batch, or the summary of another rank."""
        batch, missed = (other.rows, other.missed) if isinstance(other, MisraGries) else (other, 0.0)
        rows, missed = self.rows + batch, self.missed + missed
        if rows.ids.size <= self.capacity:
            return replace(self, rows=rows, missed=missed)
        last = rows.ids.size - self.capacity - 1
        taken = float(np.partition(rows.counts, last)[last])
        kept = rows.only(rows.counts > taken)
        return replace(self, rows=RowCounts(kept.ids, kept.counts - taken), missed=missed + taken)

    def scaled(self, factor: float) -> "MisraGries":
        """Return all counts times a factor: what has been seen fades."""
        return replace(self, rows=RowCounts(self.rows.ids, self.rows.counts * factor), missed=self.missed * factor)


@dataclass(frozen=True, kw_only=True)
class HashedSample:
    """All rows whose hash lies below a threshold, counted exactly from their first lookup on.

    Which rows these are does not depend on how often they are looked up, so the histogram of their counts, over `rate`,
    is unbiased for all rows: Wegman's adaptive sampling (Flajolet, 1990; Gibbons' distinct sampling, 2001). When more
    than `capacity` rows are below the threshold, it is halved. Distinct rows are known with a standard error of about
    1.2 / sqrt(capacity) of their number.
    """

    capacity: int
    rows: RowCounts = field(default_factory=RowCounts)
    halvings: int = 0

    @property
    def rate(self) -> float:
        """The share of rows that are counted."""
        return 2.0**-self.halvings

    def add(self, other: "HashedSample | RowCounts") -> "HashedSample":
        """Take in a batch, or the sample of another rank."""
        batch = other.rows if isinstance(other, HashedSample) else other
        halvings = max(self.halvings, other.halvings if isinstance(other, HashedSample) else 0)
        rows = _below(self.rows, halvings) + _below(batch, halvings)
        while rows.ids.size > self.capacity:
            halvings += 1
            rows = _below(rows, halvings)
        return replace(self, rows=rows, halvings=halvings)

    def scaled(self, factor: float) -> "HashedSample":
        """Return all counts times a factor: what has been seen fades."""
        return replace(self, rows=RowCounts(self.rows.ids, self.rows.counts * factor))


def _below(rows: RowCounts, halvings: int) -> RowCounts:
    if not halvings:
        return rows
    return rows.only(hashed(rows.ids, _SEED) < np.uint64(2 ** (64 - halvings)))
