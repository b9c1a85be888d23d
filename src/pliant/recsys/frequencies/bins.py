"""Row frequencies of all tables as rectangles of numbers: what closed forms run over, whatever the tables' sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.rows import Frequencies, RowFrequencies
from pliant.recsys.frequencies.unique import probability_seen
from pliant.spec import Table

__all__ = ["RowBins"]

Floats = npt.NDArray[np.float64]

_SINGLE = 64
"""Rows that are bins of their own, with known owners."""
_RATIO = 1.15
"""Probabilities that share a bin. That of the mean differs from the mean over them by less than 0.1 %."""
_SIZES = 12
"""Sizes of bags that are told apart."""


@dataclass(frozen=True, eq=False)
class RowBins:
    """Rows of tables (t), the most frequent first, in bins (t, b) of about equal frequency."""

    p: Floats
    """(t, b), probability that a lookup is of one row of the bin"""
    rows: Floats
    """(t, b)"""
    before: Floats
    """(t, b), rows that are more frequent"""
    heads: npt.NDArray[np.int64]
    """(t, 64), ids of the first bins, which are single rows; -1 where not"""
    pooling: Floats
    """(t,), mean of ids in a bag"""
    bag_sizes: Floats
    """(t, s)"""
    bag_shares: Floats
    """(t, s), share of bags of each size"""

    @classmethod
    def of(cls, tables: Sequence[Table], frequencies: Frequencies) -> "RowBins":
        """Condense frequencies of the tables of a plan, in its order.

        Raises:
            ValueError: There are frequencies of other tables.

        """
        theirs = [(each.name, each.num_rows) for each in frequencies.tables]
        ours = [(each.name, each.num_rows) for each in tables]
        if len(theirs) != len(ours) or {rows for _, rows in theirs} != {rows for _, rows in ours}:
            raise ValueError(
                f"there are {len(ours)} tables with up to {max(r for _, r in ours)} rows, but frequencies of "
                f"{len(theirs)} with up to {max((r for _, r in theirs), default=0)}; they must be of the same tables."
            )
        for (name, rows), (counted_name, counted_rows) in zip(ours, theirs, strict=True):
            if rows != counted_rows:
                raise ValueError(
                    f"table {name!r} has {rows} rows, but the frequencies in its place, of {counted_name!r}, are of "
                    f"{counted_rows}; list both in the same order."
                )
        bins = [_condensed(each) for each in frequencies.tables]
        sizes = [_sizes(each) for each in frequencies.tables]
        p, rows = (_padded([each[k] for each in bins]) for k in range(2))
        heads = np.full((len(tables), _SINGLE), -1, np.int64)
        for k, each in enumerate(frequencies.tables):
            heads[k, : min(_SINGLE, each.head_ids.size)] = each.head_ids[:_SINGLE]
        return cls(
            p=p,
            rows=rows,
            before=np.cumsum(rows, axis=1) - rows,
            heads=heads,
            pooling=np.array([each.pooling for each in frequencies.tables]),
            bag_sizes=_padded([each[0] for each in sizes]),
            bag_shares=_padded([each[1] for each in sizes]),
        )

    def only(self, tables: npt.NDArray[np.int64]) -> "RowBins":
        """Return the bins of some tables, which may repeat."""
        return RowBins(*(getattr(self, field.name)[tables] for field in fields(self)))

    def cold(self, num_hot: Floats) -> Floats:
        """Return the rows (t, b) that are left without the `num_hot` (t,) most frequent ones."""
        return np.clip(self.rows - np.maximum(num_hot[:, None] - self.before, 0.0), 0.0, None)

    def by_owner(self, values: Floats, first_owner: npt.NDArray[np.int64], num_ranks: int) -> Floats:
        """Sum values (t, b) by owner (t, ranks): row i at (i + first_owner) mod n; not single ones anywhere."""
        num_single = min(_SINGLE, values.shape[1])
        heads = self.heads[:, :num_single]
        known = np.where(heads >= 0, values[:, :num_single], 0.0)
        owners = (heads + first_owner[:, None]) % num_ranks
        cells = (np.arange(len(values))[:, None] * num_ranks + owners).reshape(-1)
        found = np.bincount(cells, known.reshape(-1), len(values) * num_ranks).reshape(-1, num_ranks)
        return found + ((values.sum(axis=1) - known.sum(axis=1)) / num_ranks)[:, None]

    def filled(self, mass: Floats) -> Floats:
        """Return the share of bags (t, ...) with an id or more among rows that have this share (t, ...) of lookups."""
        found = np.zeros_like(mass)
        shape = (-1,) + (1,) * (mass.ndim - 1)
        for size, share in zip(self.bag_sizes.T, self.bag_shares.T, strict=True):
            if share.any():
                found += share.reshape(shape) * probability_seen(mass, size.reshape(shape))
        return found


def _condensed(table: RowFrequencies) -> tuple[Floats, Floats]:
    """Return probability and number of rows of fewer bins: single rows first."""
    p, rows = table.bins
    single = min(_SINGLE, table.head_ids.size)
    rest, many = p[single:], rows[single:]
    used = (rest > 0) & (many > 0)
    rest, many = rest[used], many[used]
    if not rest.size:
        return p[:single], rows[:single]
    keys = np.floor(np.log(rest) / np.log(_RATIO))
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    num = np.add.reduceat(many, starts)
    mean = np.add.reduceat(rest * many, starts) / num
    return np.concatenate([p[:single], mean]), np.concatenate([rows[:single], num])


def _sizes(table: RowFrequencies) -> tuple[Floats, Floats]:
    """Return sizes of bags and their shares: at most 12, neighbours merged, with the table's mean."""
    shares = np.asarray(table.bag_shares, np.float64)
    sizes = np.arange(shares.size, dtype=np.float64)
    if shares.size == 257 and shares[256] > 0:  # the last one means 256 and more: what the mean leaves for it
        sizes[256] = max(256.0, (table.pooling - float(sizes[:256] @ shares[:256])) / float(shares[256]))
    used = (shares > 0) & (sizes > 0)
    sizes, shares = sizes[used], shares[used]
    if sizes.size <= _SIZES:
        return sizes, shares
    edges = np.geomspace(sizes[0], sizes[-1] * (1 + 1e-9), _SIZES + 1)
    cell = np.clip(np.searchsorted(edges, sizes, side="right") - 1, 0, _SIZES - 1)
    total = np.bincount(cell, shares, _SIZES)
    kept = total > 0
    mean = np.bincount(cell, shares * sizes, _SIZES)[kept] / total[kept]
    return mean, np.asarray(total[kept], np.float64)


def _padded(rows: Sequence[Floats]) -> Floats:
    found = np.zeros((len(rows), max(1, *(each.size for each in rows)) if rows else 1))
    for k, each in enumerate(rows):
        found[k, : each.size] = each
    return found
