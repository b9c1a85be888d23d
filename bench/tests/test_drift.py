"""Drift between two windows of a log, by hand."""

import numpy as np
import pytest

from pliant.recsys import TableCounter
from pliant_bench.clicks.drift import drift


def counted(ids, num_rows=1_000):
    counter = TableCounter("t", num_rows)
    counter.add(np.asarray(ids))
    return counter.result()


def test_drift_between_windows():
    one = counted([0] * 60 + [1] * 30 + [2] * 10)
    same = drift(one, one, num_hot=2)
    assert (same.overlap, same.total_variation) == (1, 0)
    assert same.kept_share == same.best_share == pytest.approx(0.9)
    moved = drift(one, counted([0] * 60 + [5] * 30 + [1] * 10), num_hot=2)
    assert moved.overlap == 0.5
    assert moved.total_variation == pytest.approx(0.3)
    assert (moved.kept_share, moved.best_share) == pytest.approx((0.7, 0.9))
    apart = drift(one, counted([7] * 50 + [8] * 50), num_hot=3)
    assert (apart.overlap, apart.total_variation, apart.kept_share) == (0, 1, 0)
    with pytest.raises(ValueError, match="1000 rows with 10"):
        drift(one, counted([1], 10), num_hot=2)
