"""What is counted in bounded memory against what is there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from pliant import run_world
from pliant.recsys import Frequencies, FrequencyCounter, TableCounter, merge_counters, unique_rows
from pliant.recsys.frequencies.sketch import HashedSample, MisraGries, RowCounts

batches = st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=12)


def truth(ids):
    found, counts = np.unique(np.asarray(ids, np.int64), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def zipf_ids(num, exponent, num_rows, seed=0):
    law = Frequencies.zipf([num_rows], exponent, num_exact=num_rows).tables[0]
    return np.random.default_rng(seed).choice(num_rows, num, p=law.head_p).astype(np.int64)


@given(batches, batches, st.integers(1, 12))
def test_heavy_rows_keep_their_bound_in_any_order(first, second, capacity):
    def summary(parts):
        heavy = MisraGries(capacity=capacity)
        for part in parts:
            heavy = heavy.add(RowCounts.of(np.array(part, np.int64)))
        return heavy

    merged = summary(first).add(summary(second))
    real = truth([i for part in first + second for i in part])
    held = dict(zip(merged.rows.ids.tolist(), merged.rows.counts.tolist(), strict=True))
    assert len(held) <= capacity
    assert merged.missed <= (sum(real.values()) - sum(held.values())) / (capacity + 1) + 1e-9
    for row, count in real.items():
        assert held.get(row, 0) <= count <= held.get(row, 0) + merged.missed
    if len(real) <= capacity:
        assert held == real


@given(batches, batches, st.integers(1, 12))
def test_sampled_rows_are_counted_exactly(first, second, capacity):
    parts = [HashedSample(capacity=capacity), HashedSample(capacity=capacity)]
    for k, side in enumerate((first, second)):
        for part in side:
            parts[k] = parts[k].add(RowCounts.of(np.array(part, np.int64)))
    real = truth([i for part in first + second for i in part])
    merged = parts[0].add(parts[1])
    assert merged.rows.ids.size <= capacity
    for row, count in zip(merged.rows.ids.tolist(), merged.rows.counts.tolist(), strict=True):
        assert real[row] == count
    if len(real) <= capacity:
        assert merged.rows.ids.size / merged.rate == len(real)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 2, 1], [0, 4], []])
def test_offsets_that_do_not_divide_the_lookups_are_refused(offsets):
    counter = TableCounter("user", 10)
    with pytest.raises(ValueError, match="offsets of table user begin with 0 and rise up to its 3 lookups"):
        counter.add(np.arange(3), np.array(offsets, np.int64))
    counter.add([], [])
    assert counter.result().num_lookups == 0


def test_distinct_rows_are_unbiased():
    errors = []
    for seed in range(30):
        ids = np.random.default_rng(seed).integers(0, 2**40, 20_000)
        sample = HashedSample(capacity=1000)
        for part in np.array_split(ids, 5):
            sample = sample.add(RowCounts.of(part))
        errors.append(sample.rows.ids.size / sample.rate / np.unique(ids).size - 1)
    assert np.std(errors) < 1.5 * 1.2 / np.sqrt(1000)
    assert abs(np.mean(errors)) < 3 * 1.2 / np.sqrt(1000 * 30)


@pytest.mark.parametrize("capacity", [10, 1000], ids=["sparse", "dense"])
def test_what_fits_is_exact(capacity):
    ids = [5, 5, 5, 2, 2, 999]
    counter = TableCounter("user", 1000, capacity=capacity)
    counter.add(torch.tensor(ids), torch.tensor([0, 0, 4]))
    table = counter.result()
    assert table.head_ids.tolist() == [5, 2, 999]
    assert table.head_p.tolist() == [3 / 6, 2 / 6, 1 / 6]
    assert table.tail_p.size == 0
    assert (table.num_seen, table.num_unseen, table.num_lookups, table.num_samples) == (3, 997, 6, 3)
    assert (table.pooling, table.empty_share, table.missed_p) == (2, 1 / 3, 0)
    assert table.bag_shares.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    short = counter.result(num_head=1)
    assert short.head_ids.tolist() == [5]
    assert short.bins[0].tolist() == [3 / 6, 2 / 6, 1 / 6]


def test_a_long_log_in_little_memory():
    """One million lookups of 200,000 rows; 20,000 counters and 8,000 sampled rows hold a tenth of them."""
    ids = zipf_ids(1_000_000, 1.05, 200_000)
    exact, small = (
        TableCounter("t", 200_000, capacity=200_000),
        TableCounter("t", 200_000, capacity=20_000, num_sampled=8_000),
    )
    for part in np.array_split(ids, 20):
        exact.add(part)
        small.add(part)
    real, found = exact.result(num_head=200_000), small.result()
    counts = dict(zip(real.head_ids.tolist(), real.head_p.tolist(), strict=True))
    assert found.head_ids.size > 500
    assert found.head_ids[:50].tolist() == real.head_ids[:50].tolist()
    off = [abs(counts[i] - p) for i, p in zip(found.head_ids.tolist(), found.head_p.tolist(), strict=True)]
    assert max(off) <= found.missed_p + 1e-12
    p, rows = found.bins
    assert p @ rows == pytest.approx(1)
    assert found.num_seen == pytest.approx(real.num_seen, rel=0.04)
    for k in (100, 3_000, 100_000):
        assert unique_rows(found, k) == pytest.approx(unique_rows(real, k), rel=0.02)


def test_uniques_of_batches_from_a_log():
    """Frequencies of the first part of a log against counted uniques of batches of the second."""
    ids = zipf_ids(2_000_000, 1.1, 100_000, seed=1)
    counter = TableCounter("t", 100_000, capacity=4_096, num_sampled=8_192)
    counter.add(ids[:1_000_000])
    later = ids[1_000_000:].reshape(-1, 5_000)
    counted = np.mean([np.unique(batch).size for batch in later])
    assert unique_rows(counter.result(), 5_000) == pytest.approx(counted, rel=0.01)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=200), st.integers(1, 120), st.integers(1, 30))
@settings(deadline=None)
def test_probabilities_sum_to_one_and_rows_to_the_table(ids, capacity, num_sampled):
    counter = TableCounter("t", 100, capacity=capacity, num_sampled=num_sampled)
    for part in np.array_split(np.array(ids, np.int64), 3):
        counter.add(part)
        counter.result()  # asking settles what waits, so that small summaries overflow more often
    table = counter.result()
    p, rows = table.bins
    assert p @ rows == pytest.approx(1)
    assert table.num_seen + table.num_unseen >= 100 - 1e-6
    assert (np.diff(table.tail_p) <= 0).all()


def test_shards_merge_to_the_whole():
    ids = zipf_ids(60_000, 1.0, 5_000)
    for capacity in (10_000, 500):
        parts = [FrequencyCounter([5_000], capacity=capacity, num_sampled=300) for _ in range(3)]
        for part, chunk in zip(parts, np.array_split(ids, 3), strict=True):
            part.add([chunk])
        for other in parts[1:]:
            parts[0].merge(other)
        table = parts[0].result(num_head=100).tables[0]
        assert table.num_lookups == 60_000
        real = truth(ids)
        off = [abs(real[i] / 60_000 - p) for i, p in zip(table.head_ids.tolist(), table.head_p.tolist(), strict=True)]
        assert max(off) <= table.missed_p + 1e-12


@pytest.mark.parametrize("capacity", [300, 5_000])
def test_ranks_gather_their_counters(capacity):
    ids = zipf_ids(40_000, 1.0, 5_000)

    def one(place):
        counter = FrequencyCounter([5_000, 7], names=["user", "day"], capacity=capacity, num_sampled=100)
        part = np.array_split(ids, place.size)[place.rank]
        counter.add([part, part % 7])
        return merge_counters(counter, place.comm).result(), counter.result()

    results = run_world(3, one)
    for t in range(2):
        tables = [total.tables[t] for total, _ in results]
        assert all(np.array_equal(tables[0].head_ids, other.head_ids) for other in tables)
        assert all(np.array_equal(tables[0].head_p, other.head_p) for other in tables)
        assert tables[0].num_lookups == 40_000
        assert tables[0].name == ("user", "day")[t]
        assert results[1][1].tables[t].num_lookups < 40_000
    assert results[0][0].tables[1].head_p.tolist() == sorted(np.bincount(ids % 7) / 40_000, reverse=True)


def test_counts_fade():
    for capacity in (4, 100):
        counter = TableCounter("t", 50, capacity=capacity)
        counter.add(np.zeros(100, np.int64))
        for _ in range(4):
            counter.decay(0.5)
            counter.add(np.full(10, 3))
        table = counter.result()
        assert table.head_ids.tolist() == [3, 0]
        assert table.num_lookups == pytest.approx(100 / 16 + 10 + 5 + 2.5 + 1.25)
        assert table.head_p.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"by a factor above 0 and up to 1, not by 1\.5"):
        counter.decay(1.5)


def test_a_restored_counter_goes_on():
    ids = zipf_ids(30_000, 1.0, 5_000)
    for capacity in (200, 5_000):
        one = TableCounter("t", 5_000, capacity=capacity, num_sampled=64)
        one.add(ids[:20_000])
        two = TableCounter.restored("t", one.state())
        for counter in (one, two):
            counter.add(ids[20_000:])
        assert all(np.array_equal(one.state()[k], two.state()[k]) for k in one.state())


def test_mistakes_are_named():
    counter = FrequencyCounter([10, 20], names=["user", "item"])
    with pytest.raises(ValueError, match="table item has rows 0 to 19, but a lookup is of row 20"):
        counter.add([[1], [20]])
    with pytest.raises(ValueError, match="2 tables are counted, but the batch has 3"):
        counter.add([[1], [2], [3]])
    with pytest.raises(ValueError, match="flat and of integers, not float64"):
        counter.add([[0.5], [1]])
    with pytest.raises(ValueError, match="2 tables are counted here, but 1 there"):
        counter.merge(FrequencyCounter([10]))
    with pytest.raises(ValueError, match="give both counters the same"):
        counter.merge(FrequencyCounter([10, 30]))
    with pytest.raises(ValueError, match="must be at least 1"):
        TableCounter("t", 0)


def test_a_table_never_looked_up():
    table = TableCounter("t", 10).result()
    assert (table.num_seen, table.num_unseen, table.pooling, table.empty_share) == (0, 10, 0, 1)
    assert unique_rows(table, 100) == 0
