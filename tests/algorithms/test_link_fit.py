"""The fit of a link's cost: exact where there is nothing to guess, not led astray by noise, outliers and changes."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from pliant.algorithms.link_fit import AlphaBetaFit

alphas = st.floats(1e-6, 1e-2)
betas = st.floats(1e-10, 1e-6)
seeds = st.integers(0, 10_000)


def samples(seed, num, *, most_bytes=1e6):
    """Messages and bytes that differ enough to tell alpha from beta."""
    chance = random.Random(seed)
    return [(float(chance.randint(1, 40)), most_bytes * chance.uniform(0.05, 1)) for _ in range(num)]


@given(alphas, betas, seeds)
def test_without_noise_it_predicts_and_stays_non_negative(alpha, beta, seed):
    fit = AlphaBetaFit()
    for messages, num_bytes in samples(seed, 60):
        fit.add(messages, num_bytes, alpha * messages + beta * num_bytes)
        assert fit.alpha >= 0
        assert fit.beta >= 0
    for messages, num_bytes in samples(seed + 1, 10):
        assert fit(messages, num_bytes) == pytest.approx(alpha * messages + beta * num_bytes, rel=0.05)


@given(seeds, st.floats(0, 0.08))
def test_noise_and_outliers_leave_the_rate_within_a_tenth(seed, noise):
    chance, fit = random.Random(seed), AlphaBetaFit()
    for k, (messages, num_bytes) in enumerate(samples(seed, 60)):
        seconds = (2e-4 * messages + 1e-7 * num_bytes) * math.exp(chance.gauss(0, noise))
        fit.add(messages, num_bytes, 8 * seconds if k % 9 == 5 else seconds)
    assert fit.beta == pytest.approx(1e-7, rel=0.15)


@given(seeds, st.floats(0.02, 50).filter(lambda factor: not 0.6 < factor < 1.7))
def test_a_change_of_rate_is_known_after_two_samples(seed, factor):
    fit = AlphaBetaFit()
    for messages, num_bytes in samples(seed, 40):
        fit.add(messages, num_bytes, 1e-4 * messages + 1e-7 * num_bytes)
    changes = fit.changes
    for messages, num_bytes in [(8.0, 1e6), (8.0, 9e5)]:
        fit.add(messages, num_bytes, 1e-4 * messages + factor * 1e-7 * num_bytes)
    assert fit.changes == changes + 1
    assert fit.beta == pytest.approx(factor * 1e-7, rel=0.1)


def test_one_outlier_moves_it_by_little_and_is_doubted():
    fit = AlphaBetaFit()
    for messages, num_bytes in samples(3, 40):
        fit.add(messages, num_bytes, 1e-4 * messages + 1e-7 * num_bytes)
    before, usual = fit.state(), fit(4, 5e5)
    fit.add(4, 5e5, 20 * usual)
    assert fit.doubts
    assert fit(4, 5e5) == pytest.approx(usual, rel=0.05)
    fit.add(4, 5e5, usual)
    assert not fit.doubts
    assert fit.changes == before[2]


def test_samples_that_are_all_alike_do_not_undo_how_the_time_is_divided():
    fit = AlphaBetaFit()
    for messages, num_bytes in samples(1, 40):
        fit.add(messages, num_bytes, 1e-3 * messages + 1e-7 * num_bytes)
    chance = random.Random(1)
    for _ in range(200):
        fit.add(10, 1e5 * chance.uniform(0.98, 1.02), 0.02 * math.exp(chance.gauss(0, 0.05)))
    assert fit(10, 1e5) == pytest.approx(0.02, rel=0.03)
    assert 0.3 < 1e5 * fit.beta / 0.02 < 0.7


def test_it_goes_on_from_its_state():
    one, other = AlphaBetaFit(), AlphaBetaFit()
    rows = samples(5, 30)
    for messages, num_bytes in rows[:15]:
        one.add(messages, num_bytes, 1e-4 * messages + 1e-7 * num_bytes)
    one.add(1, 1e6, 3.0)  # odd, and remembered as such
    other.load(one.state())
    for messages, num_bytes in rows[15:]:
        for fit in (one, other):
            fit.add(messages, num_bytes, 1e-4 * messages + 1e-6 * num_bytes)
    assert one.state() == other.state()


@pytest.mark.parametrize("sample", [(0, 0, 1.0), (1, 10, 0.0), (1, -1, 1.0), (1, 10, math.nan), (math.inf, 1, 1.0)])
def test_what_is_no_measurement_is_refused(sample):
    with pytest.raises(ValueError, match="needs something that was sent, in a time above 0"):
        AlphaBetaFit().add(*sample)
