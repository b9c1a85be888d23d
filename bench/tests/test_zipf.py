"""The fit against data drawn from known laws."""

import numpy as np
import pytest

from pliant.recsys import Frequencies, TableCounter
from pliant.recsys.frequencies.zipf_cells import cell_masses
from pliant_bench.clicks.zipf import fit_zipf


def drawn(p, num, rng):
    counter = TableCounter("t", p.size)
    counter.add(np.repeat(np.arange(p.size), rng.multinomial(num, p)))
    return counter.result()


@pytest.mark.parametrize(
    ("num_rows", "exponent", "num"),
    [(20_000, 0.8, 100_000), (20_000, 1.05, 100_000), (100_000, 1.2, 300_000), (1_000, 0.6, 10_000)],
)
def test_the_interval_covers_the_truth(num_rows, exponent, num):
    """95 % is promised: of 40 simulations, fewer than 34 would be so by chance once in three hundred times."""
    p, rng = cell_masses(np.arange(num_rows + 1), exponent), np.random.default_rng(5)
    fits = [fit_zipf(drawn(p, num, rng)) for _ in range(40)]
    assert sum(f.low <= exponent <= f.high for f in fits) >= 34
    estimates = [f.exponent for f in fits]
    assert abs(np.mean(estimates) - exponent) < 0.005
    assert np.mean([f.high - f.low for f in fits]) < 1.5 * 2 * 1.96 * np.std(estimates)
    assert all(f.fits for f in fits)


def test_a_plateau_is_found():
    p, rng = cell_masses(np.arange(20_001), 1.1, 10.0), np.random.default_rng(6)
    fits = [fit_zipf(drawn(p, 1_000_000, rng), plateau=True) for _ in range(8)]
    assert sum(f.low <= 1.1 <= f.high for f in fits) >= 6
    assert np.mean([f.shift for f in fits]) == pytest.approx(10, rel=0.1)
    assert all(f.fits for f in fits)
    without = fit_zipf(drawn(p, 1_000_000, rng))
    assert not without.fits
    assert without.distance > 0.05


def test_a_bad_fit_says_so():
    rng = np.random.default_rng(7)
    p = np.exp(rng.normal(0, 2, 20_000))
    bad = fit_zipf(drawn(p / p.sum(), 1_000_000, rng))
    assert not bad.fits
    assert "but the fit is bad: shares of lookups differ from the law by up to 0." in str(bad)
    good = fit_zipf(drawn(cell_masses(np.arange(20_001), 1.05), 1_000_000, rng))
    assert good.fits
    assert str(good).startswith("p ~ rank^-1.0")


def test_a_fit_of_a_sketch_is_a_fit_of_the_log():
    p, rng = cell_masses(np.arange(200_001), 1.05), np.random.default_rng(8)
    counter = TableCounter("t", 200_000, capacity=20_000, num_sampled=4_000)
    ids = np.repeat(np.arange(200_000), rng.multinomial(1_000_000, p))
    for part in np.array_split(rng.permutation(ids), 10):
        counter.add(part)
    fit = fit_zipf(counter.result())
    assert fit.exponent == pytest.approx(1.05, abs=0.005)
    assert fit.fits


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="a fit needs at least 225 lookups"):
        fit_zipf(Frequencies.zipf([1_000], 1.0).tables[0])
