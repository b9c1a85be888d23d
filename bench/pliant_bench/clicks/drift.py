"""Drift of row frequencies between two windows of a log."""

from dataclasses import dataclass

import numpy as np

from pliant.recsys.frequencies.rows import RowFrequencies

__all__ = ["Drift", "drift"]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Difference of two windows, over their `num_hot` most frequent rows."""

    num_hot: int
    overlap: float
    """Share of the earlier window's hot rows that are hot in the later one, too."""
    total_variation: float
    """Half the sum of differences of probabilities, of each hot row of either window and of all others as one: 0 where
    the windows are equal, 1 where they share nothing. A lower bound of the distance over all rows."""
    kept_share: float
    """Share of the later window's lookups that the earlier window's hot rows take; to be compared with `best_share`."""
    best_share: float
    """Share of the later window's lookups that its own hot rows take."""


def drift(earlier: RowFrequencies, later: RowFrequencies, *, num_hot: int) -> Drift:
    """Compare two windows of the log of one table, as far as their heads list rows.

    Raises:
        ValueError: The windows are of tables of different sizes, or no row is asked for.

    """
    if earlier.num_rows != later.num_rows or num_hot < 1:
        raise ValueError(
            f"two windows of one table and at least 1 hot row are compared, not {earlier.num_rows} rows with "
            f"{later.num_rows}, {num_hot} of them hot."
        )
    num_hot = max(1, min(num_hot, max(earlier.head_ids.size, later.head_ids.size)))
    p, q = ({int(i): float(x) for i, x in zip(w.head_ids, w.head_p, strict=True)} for w in (earlier, later))
    old, new = set(earlier.head_ids[:num_hot].tolist()), set(later.head_ids[:num_hot].tolist())
    rows = sorted(old | new)
    before, after = np.array([p.get(i, 0.0) for i in rows]), np.array([q.get(i, 0.0) for i in rows])
    rest = abs(before.sum() - after.sum())
    return Drift(
        num_hot=num_hot,
        overlap=len(old & new) / max(len(old), 1),
        total_variation=float(np.abs(before - after).sum() + rest) / 2,
        kept_share=float(sum(q.get(i, 0.0) for i in sorted(old))),
        best_share=float(later.head_p[:num_hot].sum()),
    )
