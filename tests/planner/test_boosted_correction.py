"""What is learned helps where it was seen, says so where it was not, and is silent on few runs."""

import numpy as np
import pytest

from pliant.planner.boosted_correction import FEW, BoostedCorrection


def world(num: int, seed: int, low: float = 0.0, high: float = 1.0):
    """Features, and an error of the simulator that two of them explain."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(low, high, (num, 5))
    error = 0.4 * (features[:, 0] > 0.5) + 0.3 * features[:, 1] + rng.normal(0, 0.02, num)
    return features, error, rng.integers(0, 10, num)


def left(model: BoostedCorrection, features, error) -> float:
    return float(np.mean((error - model.predict(features)[0]) ** 2) ** 0.5)


def test_nothing_is_learned_from_few_runs():
    features, error, groups = world(FEW - 1, 0)
    model = BoostedCorrection()
    model.fit(features, error, groups)
    correction, deviation = model.predict(features)
    assert model.shrink == 0
    assert np.all(correction == 0)
    assert np.allclose(deviation, np.std(error))


@pytest.mark.parametrize(("num", "most"), [(60, 0.5), (200, 1.0)])
def test_more_runs_are_believed_more_and_leave_less_error(num, most):
    model = BoostedCorrection()
    model.fit(*world(num, 1))
    assert model.shrink == most
    features, error, _ = world(500, 2)
    assert left(model, features, error) < (0.65 if most == 0.5 else 0.35) * float(np.mean(error**2) ** 0.5)


def test_where_nothing_was_seen_the_simulator_stands_alone():
    model = BoostedCorrection()
    model.fit(*world(200, 1))
    far, _, _ = world(50, 3, low=2.5, high=3.0)
    correction, deviation = model.predict(far)
    assert np.all(correction == 0)
    assert np.all(deviation >= model.floor)


def test_noise_is_not_believed():
    rng = np.random.default_rng(0)
    features = rng.uniform(0, 1, (150, 5))
    model = BoostedCorrection()
    model.fit(features, rng.normal(0, 0.2, 150), rng.integers(0, 15, 150))
    assert model.shrink <= 0.25


def test_intervals_cover():
    model = BoostedCorrection()
    model.fit(*world(200, 1))
    features, error, _ = world(500, 2)
    correction, deviation = model.predict(features)
    inside = np.abs(error - correction) < 1.645 * deviation
    assert inside.mean() > 0.8


def test_the_same_runs_give_the_same_model():
    features, error, groups = world(120, 4)
    one, other = BoostedCorrection(seed=3), BoostedCorrection(seed=3)
    one.fit(features, error, groups)
    other.fit(features, error, groups)
    assert np.array_equal(one.predict(features)[0], other.predict(features)[0])
