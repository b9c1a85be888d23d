"""Count the rows of a click log as it streams by, in bounded memory, on each rank or shard; then merge."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.rows import Frequencies, RowFrequencies
from pliant.recsys.frequencies.sketch import HashedSample, MisraGries, RowCounts

__all__ = ["FrequencyCounter", "TableCounter"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_WAITING = 2**17
_BAG_SIZES = 257
_SURE = 2.0
"""A row is listed in the head if its count is at least so many times what may be missing from it. Rows as frequent as
this were there each time that something was taken off, so all of it is given back: at most half too much, in practice
none."""


class TableCounter:
    """Counts lookups of one table.

    A table with at most `capacity` rows gets a counter each. A larger one is counted exactly while at most `capacity`
    different rows have been seen; then the most frequent are kept with a bound on what they miss (`MisraGries`), and
    the tail is known from rows chosen by their hash (`HashedSample`). Memory: 8 bytes per row, or at most about 100
    bytes times `capacity` while counting, and 1 MB of lookups that wait.
    """

    def __init__(self, name: str, num_rows: int, *, capacity: int = 2**17, num_sampled: int = 2**15) -> None:
        if num_rows < 1 or capacity < 1 or num_sampled < 1:
            raise ValueError(
                f"rows of table {name}, capacity and sampled rows must be at least 1, but are {num_rows}, {capacity} "
                f"and {num_sampled}."
            )
        self.name, self.num_rows, self.capacity, self.num_sampled = name, num_rows, capacity, num_sampled
        self._dense: Floats | None = np.zeros(num_rows) if num_rows <= capacity else None
        self._heavy, self._sample = MisraGries(capacity=capacity), HashedSample(capacity=num_sampled)
        self._waiting: list[Ids] = []
        self._num_waiting = 0
        self._num_lookups = 0.0
        self._bags = np.zeros(_BAG_SIZES)

    def add(self, ids: Any, offsets: Any = None) -> None:
        """Count lookups (k,) of bags that begin at offsets (samples,), as nn.EmbeddingBag takes them; none: bags of
        one.

        Raises:
            ValueError: An id is not of this table, or offsets do not divide the lookups.

        """
        found = _array(ids)
        if found.size and (found.min() < 0 or found.max() >= self.num_rows):
            wrong = found[(found < 0) | (found >= self.num_rows)][0]
            raise ValueError(f"table {self.name} has rows 0 to {self.num_rows - 1}, but a lookup is of row {wrong}.")
        if offsets is None:
            self._bags[1] += found.size
        else:
            sizes = np.diff(_array(offsets), prepend=0, append=found.size)  # before the first bag, then of each
            if sizes[0] or sizes.min() < 0:
                raise ValueError(
                    f"offsets of table {self.name} begin with 0 and rise up to its {found.size} lookups, but are "
                    f"{_array(offsets)}; give where each bag begins."
                )
            sizes = sizes[1:]
            self._bags += np.bincount(np.minimum(sizes, _BAG_SIZES - 1), minlength=_BAG_SIZES)
        self._num_lookups += found.size
        self._num_waiting += found.size
        self._waiting.append(found)
        if self._num_waiting >= _WAITING:
            self._settle()

    def merge(self, other: "TableCounter") -> None:
        """Take in what another rank or shard has counted of the same table."""
        mine, theirs = ((c.num_rows, c.capacity, c.num_sampled) for c in (self, other))
        if mine != theirs:
            raise ValueError(
                f"table {self.name} is counted here with rows, capacity and sampled rows {mine}, there with {theirs}; "
                "give both counters the same."
            )
        self._settle()
        other._settle()
        if self._dense is not None and other._dense is not None:
            self._dense = self._dense + other._dense
        self._heavy, self._sample = self._heavy.add(other._heavy), self._sample.add(other._sample)
        self._num_lookups += other._num_lookups
        self._bags = self._bags + other._bags

    def decay(self, factor: float) -> None:
        """Multiply all counts by a factor in (0, 1]: with 0.5 every m steps, what is 2 m steps old counts a quarter."""
        if not 0 < factor <= 1:
            raise ValueError(f"counts fade by a factor above 0 and up to 1, not by {factor}.")
        self._settle()
        if self._dense is not None:
            self._dense = self._dense * factor
        self._heavy, self._sample = self._heavy.scaled(factor), self._sample.scaled(factor)
        self._num_lookups *= factor
        self._bags = self._bags * factor

    def result(self, *, num_head: int = 2**16) -> RowFrequencies:
        """Return the frequencies so far, with at most `num_head` rows listed one by one."""
        self._settle()
        counted, missed = self._heavy.rows, self._heavy.missed
        if self._dense is not None:
            ids = np.flatnonzero(self._dense)
            counted, missed = RowCounts(ids, self._dense[ids]), 0.0
        order = np.lexsort((counted.ids, -counted.counts))
        sure = int(np.count_nonzero(counted.counts >= _SURE * missed))
        order = order[: min(num_head, sure)]
        head_ids, head = counted.ids[order], counted.counts[order] + missed
        if not missed:
            tail, weight = counted.only(~np.isin(counted.ids, head_ids)), 1.0
        else:
            sampled = self._sample.rows
            tail, weight = sampled.only(~np.isin(sampled.ids, head_ids)), 1 / self._sample.rate
        weight = min(weight, max(0.0, self.num_rows - head_ids.size) / max(tail.ids.size, 1))
        counts, rows = _binned(tail.counts, weight)
        total, rest = max(self._num_lookups, 1e-300), max(0.0, self._num_lookups - float(head.sum()))
        if rest and not counts.size and missed:  # no sampled row is of the tail: as few rows as can hold what is there
            counts, rows = np.array([(_SURE + 1) * missed]), np.array([rest / (_SURE + 1) / missed])
        in_tail = float(counts @ rows)
        num_samples = float(self._bags.sum())
        return RowFrequencies(
            name=self.name,
            num_rows=self.num_rows,
            head_ids=head_ids,
            head_p=head / total,
            tail_p=counts * (rest / in_tail if in_tail else 0.0) / total,
            tail_rows=rows,
            num_lookups=self._num_lookups,
            num_samples=num_samples,
            pooling=self._num_lookups / num_samples if num_samples else 0.0,
            bag_shares=np.trim_zeros(self._bags, "b") / num_samples if num_samples else np.ones(1),
            missed_p=missed / total,
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that was counted as flat arrays, for a checkpoint or another rank."""
        self._settle()
        return {
            "size": np.array([self.num_rows, self.capacity, self.num_sampled, self._sample.halvings]),
            "sums": np.array([self._num_lookups, self._heavy.missed]),
            "bags": self._bags,
            "dense": np.zeros(0) if self._dense is None else self._dense,
            "heavy_ids": self._heavy.rows.ids,
            "heavy_counts": self._heavy.rows.counts,
            "sample_ids": self._sample.rows.ids,
            "sample_counts": self._sample.rows.counts,
        }

    @classmethod
    def restored(cls, name: str, state: dict[str, npt.NDArray[Any]]) -> "TableCounter":
        """Return a counter that goes on where `state` was asked for."""
        num_rows, capacity, num_sampled, halvings = (int(x) for x in state["size"])
        counter = cls(name, num_rows, capacity=capacity, num_sampled=num_sampled)
        if counter._dense is not None:
            counter._dense = state["dense"].copy()
        heavy = RowCounts(state["heavy_ids"], state["heavy_counts"])
        sample = RowCounts(state["sample_ids"], state["sample_counts"])
        counter._heavy = MisraGries(capacity=capacity, rows=heavy, missed=float(state["sums"][1]))
        counter._sample = HashedSample(capacity=num_sampled, rows=sample, halvings=halvings)
        counter._num_lookups, counter._bags = float(state["sums"][0]), state["bags"].copy()
        return counter

    def _settle(self) -> None:
        """Count the ids that wait."""
        if not self._num_waiting:
            return
        ids = np.concatenate(self._waiting)
        self._waiting, self._num_waiting = [], 0
        if self._dense is not None:
            self._dense += np.bincount(ids, minlength=self.num_rows)
            return
        for first in range(0, ids.size, _WAITING):  # one huge batch must not need more memory than many small ones
            batch = RowCounts.of(ids[first : first + _WAITING])
            self._heavy, self._sample = self._heavy.add(batch), self._sample.add(batch)


class FrequencyCounter:
    """Counts lookups of all tables: `add` batches, `merge` the counters of ranks or shards, ask for the `result`."""

    def __init__(
        self, num_rows: Sequence[int], *, names: Sequence[str] = (), capacity: int = 2**17, num_sampled: int = 2**15
    ) -> None:
        called = tuple(names) or tuple(f"t{t}" for t in range(len(num_rows)))
        self.tables = tuple(
            TableCounter(name, rows, capacity=capacity, num_sampled=num_sampled)
            for name, rows in zip(called, num_rows, strict=True)
        )

    def add(self, ids: Sequence[Any], offsets: Sequence[Any] | None = None) -> None:
        """Count one batch: per table ids (k,) and, unless all bags are of one, offsets (samples,)."""
        if len(ids) != len(self.tables) or (offsets is not None and len(offsets) != len(ids)):
            given = len(ids) if offsets is None or len(ids) != len(self.tables) else len(offsets)
            raise ValueError(f"{len(self.tables)} tables are counted, but the batch has {given}.")
        for t, table in enumerate(self.tables):
            table.add(ids[t], None if offsets is None else offsets[t])

    def merge(self, other: "FrequencyCounter") -> None:
        """Take in what another rank or shard has counted."""
        if len(self.tables) != len(other.tables):
            raise ValueError(f"{len(self.tables)} tables are counted here, but {len(other.tables)} there.")
        for mine, theirs in zip(self.tables, other.tables, strict=True):
            mine.merge(theirs)

    def decay(self, factor: float) -> None:
        """Let what has been counted fade by a factor, in all tables."""
        for table in self.tables:
            table.decay(factor)

    def result(self, *, num_head: int = 2**16) -> Frequencies:
        """Return the frequencies so far."""
        return Frequencies(tables=tuple(table.result(num_head=num_head) for table in self.tables))


def _array(values: Any) -> Ids:
    plain = np.asarray(values.cpu() if hasattr(values, "cpu") else values)  # a tensor may be on another device
    if plain.ndim != 1 or (plain.size and plain.dtype.kind not in "iu"):
        raise ValueError(f"ids and offsets are flat and of integers, not {plain.dtype} of shape {plain.shape}.")
    return plain.astype(np.int64)


def _binned(counts: Floats, weight: float) -> tuple[Floats, Floats]:
    """Return mean counts (bins,), falling, and rows (bins,): a bin for each count up to 32, then 16 per doubling."""
    if not counts.size:
        return np.zeros(0), np.zeros(0)
    keys = np.where(counts <= 32, np.ceil(counts), 32 + np.ceil(16 * np.log2(np.maximum(counts, 32) / 32)))
    _, which = np.unique(-keys, return_inverse=True)
    rows = np.bincount(which).astype(np.float64)
    return np.bincount(which, counts) / rows, rows * weight
