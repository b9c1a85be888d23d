"""Stated laws, files, and what they say about batches, against counting."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pliant.recsys import (
    Frequencies,
    TableCounter,
    probability_all_hot,
    probability_seen,
    unique_by_owner,
    unique_rows,
)
from pliant.recsys.frequencies.zipf_cells import cell_masses, log_edges

tables = st.builds(
    lambda rows, s, shift: Frequencies.zipf([rows], s, shift=shift, num_exact=64).tables[0],
    st.integers(1, 5_000),
    st.floats(0, 2.5),
    st.floats(0, 50),
)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.05, 2.0])
@pytest.mark.parametrize("shift", [0.0, 12.5])
def test_binned_laws_are_the_law(exponent, shift):
    num_rows = 300_000
    p = (np.arange(1, num_rows + 1) + shift) ** -exponent
    p /= p.sum()
    edges = log_edges(num_rows, 100)
    masses = np.add.reduceat(p, edges[:-1])
    assert cell_masses(edges, exponent, shift) == pytest.approx(masses, rel=1e-6)
    table = Frequencies.zipf([num_rows], exponent, shift=shift, num_exact=100).tables[0]
    for k in (1, 1_000, 10**6):
        assert unique_rows(table, k) == pytest.approx(probability_seen(p, k).sum(), rel=2e-5)
    for hot in (1, 50, 1_234):
        assert table.hot_share(hot) == pytest.approx(p[:hot].sum(), rel=1e-3)


def test_forty_million_rows_are_a_few_thousand_numbers():
    table = Frequencies.zipf([40_000_000], 1.05).tables[0]
    p, rows = table.bins
    assert p.size < 6_000
    assert p @ rows == pytest.approx(1)
    assert (rows.sum(), table.num_seen, table.num_unseen) == (4e7, 4e7, 0)


def test_rare_rows_lose_no_digits():
    assert probability_seen(np.array([1e-12]), 1000)[0] == pytest.approx(1e-9, rel=1e-9)
    assert probability_seen(np.array([1.0, 0.0]), 5).tolist() == [1.0, 0.0]
    assert probability_seen(np.array([1.0, 0.5]), 0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.2])
def test_expected_unique_rows_are_the_mean_of_counted_ones(exponent):
    table = Frequencies.zipf([20_000], exponent, num_exact=20_000).tables[0]
    rng, k = np.random.default_rng(3), 4_000
    batches = [np.unique(rng.choice(20_000, k, p=table.head_p)) for _ in range(60)]
    expected = unique_rows(table, k)
    # The variance is at most the mean, so this is four standard errors.
    assert abs(np.mean([b.size for b in batches]) - expected) < 4 * np.sqrt(expected / 60)
    assert np.var([b.size for b in batches]) < expected
    owners = np.mean([np.bincount((b[b >= 100] + 2) % 3, minlength=3) for b in batches], axis=0)
    split = unique_by_owner(table, k, table_index=2, num_ranks=3, num_hot=100)
    assert split.sum() == pytest.approx(unique_rows(table, k, num_hot=100))
    assert np.abs(owners - split).max() < 4 * np.sqrt(split.max() / 60)


@given(tables, st.floats(0, 1e6), st.floats(1, 3), st.integers(0, 6_000))
def test_unique_rows_are_bounded_and_rise(table, k, factor, hot):
    fewer, more = unique_rows(table, k), unique_rows(table, k * factor)
    assert 0 <= fewer <= more * (1 + 1e-12) + 1e-9
    assert more <= min(table.num_rows, max(k * factor, 1)) * (1 + 1e-9)
    assert unique_rows(table, k, num_hot=hot) <= fewer + 1e-9
    assert 0 <= table.hot_share(hot) <= 1 + 1e-9
    if hot >= table.num_rows:
        assert unique_rows(table, k, num_hot=hot) == 0


def test_batches_without_cold_rows():
    stated = Frequencies.zipf([1_000, 500], [1.2, 1.0], pooling=[1, 3])
    shares = [t.hot_share(n) for t, n in zip(stated.tables, (200, 100), strict=True)]
    assert probability_all_hot(stated, [200, 100], num_samples=2) == pytest.approx((shares[0] * shares[1] ** 3) ** 2)
    rng = np.random.default_rng(0)
    a = rng.choice(1_000, (20_000, 1), p=stated.tables[0].head_p) < 200
    b = rng.choice(500, (20_000, 3), p=stated.tables[1].head_p) < 100
    chance = probability_all_hot(stated, [200, 100])
    assert abs((a.all(1) & b.all(1)).mean() - chance) < 4 * np.sqrt(chance / 20_000)
    assert probability_all_hot(stated, [1_000, 500], num_samples=100) == pytest.approx(1)


def test_stated_poolings():
    table = Frequencies.uniform([10], pooling=2.25).tables[0]
    assert table.bag_shares @ np.arange(table.bag_shares.size) == pytest.approx(2.25)
    assert table.empty_share == 0
    assert Frequencies.uniform([10], pooling=0.5).tables[0].empty_share == 0.5
    assert np.allclose(table.head_p, 0.1)


def test_a_file_brings_all_back(tmp_path):
    counter = TableCounter("user", 5_000, capacity=50, num_sampled=20)
    counter.add(np.arange(3_000) ** 2 % 5_000)
    before = Frequencies(tables=(counter.result(), *Frequencies.zipf([1_000_000], 1.05).tables))
    before.save(tmp_path / "log.npz")
    after = Frequencies.load(tmp_path / "log.npz")
    for a, b in zip(before.tables, after.tables, strict=True):
        for name in vars(a):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert [p.name for p in tmp_path.iterdir()] == ["log.npz"]


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz holds no Frequencies"):
        Frequencies.load(other)
    other.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ValueError, match="holds no Frequencies"):
        Frequencies.load(other)
    header = np.frombuffer(b'{"pliant": "Frequencies", "format": 9, "tables": []}', np.uint8)
    np.savez(other, header=header)
    with pytest.raises(ValueError, match="of format 9, this Pliant reads 'Frequencies' of format 1"):
        Frequencies.load(other)
    header = np.frombuffer(b'{"pliant": "Frequencies", "format": 1, "tables": [{"color": 3}]}', np.uint8)
    np.savez(other, header=header)
    with pytest.raises(ValueError, match="does not fit"):
        Frequencies.load(other)
    with pytest.raises(FileNotFoundError):
        Frequencies.load(tmp_path / "missing.npz")


def test_meaningless_laws_are_refused():
    with pytest.raises(ValueError, match="there are 3 exponents for 2 tables"):
        Frequencies.zipf([5, 5], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Frequencies.zipf([0], 1.0)
