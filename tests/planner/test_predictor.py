"""Coefficients are recovered from trials, stay non-negative, and what no trial speaks of stays as given."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.examples import FLAT, WORKLOAD, true_step_s
from pliant.planner import Quality, SearchLimits, Space, Trial, search
from pliant.planner.predictor import Predictor, TransferPrior, fit_coefficients


@given(st.integers(0, 10**6))
def test_true_coefficients_are_found(seed):
    rng = np.random.default_rng(seed)
    true = rng.uniform(0.5, 2, 6)
    counts = rng.uniform(0, 1, (60, 6))
    found = fit_coefficients(counts, counts @ true, np.ones(6), np.full(6, 0.01))
    assert np.allclose(counts @ found, counts @ true, rtol=0.05)


def test_what_no_trial_speaks_of_stays_as_it_was():
    counts = np.array([[1.0, 0.0], [2.0, 0.0]])
    found = fit_coefficients(counts, np.array([3.0, 6.0]), np.array([1.0, 7.0]), np.full(2, 0.01))
    assert found == pytest.approx([2.91, 7.0], rel=0.01)


def test_a_trial_changes_what_is_trusted_less():
    """Of two quantities with equal shares, the one that is trusted a hundred times less moves a hundred times more."""
    found = fit_coefficients(np.array([[1.0, 1.0]]), np.array([3.0]), np.ones(2), np.array([3.0, 0.03]))
    assert (found[1] - 1) == pytest.approx(100 * (found[0] - 1))
    assert 2.5 < found.sum() < 3


@given(st.integers(0, 10**6))
def test_no_coefficient_is_negative(seed):
    rng = np.random.default_rng(seed)
    found = fit_coefficients(
        rng.uniform(0, 1, (5, 8)), rng.uniform(0.01, 10, 5), rng.uniform(0.1, 1, 8), rng.uniform(0, 1, 8)
    )
    assert np.all(found >= 0)


class Sizes:
    """Physics that knows bytes and a cost per bucket, with wrong coefficients."""

    def __init__(self) -> None:
        self.coefficients, self.trust = np.array([0.3, 0.3, 0.001]), np.full(3, 0.01)
        self.asked = 0

    def counts(self, plans, coefficients):
        self.asked += len(plans)
        rows = []
        for plan in plans:
            codec = plan.rules[-1].exchange.payload_codec
            size = 1.0 if codec is None else 0.5 if codec.name == "bf16" else 0.3
            rows.append([1.0, size, math.log2(max(1, (25 << 20) / (plan.bucket_bytes or 25 << 20)))])
        return np.array(rows)


def trials(space: Space, num: int) -> list[Trial]:
    rng = random.Random(0)
    return [Trial(genes=g, steps_s=(true_step_s(g),)) for g in (space.sample(rng) for _ in range(num))]


def test_more_trials_predict_better():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.6))
    (*rest,) = trials(space, 330)
    test = rest[230:]
    measured = np.log([t.step_s for t in test])
    errors = []
    for num in (0, 20, 230):
        model = Predictor(Sizes())
        model.fit(rest[:num])
        errors.append(float(np.mean(np.abs(model.predict([t.genes for t in test])[0] - measured))))
    assert errors[0] > errors[1] > 2 * errors[2]


def test_failures_teach_nothing_and_break_nothing():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.6))
    model = Predictor(Sizes())
    model.fit([Trial(genes=t.genes, status="failed", reason="NaN") for t in trials(space, 5)])
    assert np.array_equal(model.coefficients, Sizes().coefficients)
    assert model.residual.shrink == 0


@pytest.mark.extended
def test_a_search_with_it_finds_the_best_though_its_physics_is_wrong():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.6))

    def measure(genes, *, give_up_above_s):
        del give_up_above_s
        return Trial(genes=genes, steps_s=(true_step_s(genes),))

    found = search(space, Predictor(Sizes()), measure, SearchLimits(max_trials=80, num_candidates=100))
    best = min(true_step_s(g) * space.quality.ratio(g) for g in space.enumerate())
    assert true_step_s(found.best) * space.quality.ratio(found.best) <= 1.03 * best


def test_what_was_learned_elsewhere_helps_before_the_first_trial_and_gives_way_to_trials():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.6))
    known = trials(space, 120)
    experience = TransferPrior.of(
        [(Sizes(), known[:60]), (Sizes(), [*known[60:], Trial(genes=known[0].genes, status="failed")])]
    )
    assert len(experience.error) == len(experience.groups) == len(experience.features) == 120
    asked = [t.genes for t in trials(space, 200)[120:]]
    true = np.log([true_step_s(g) for g in asked])

    def error(model):
        return float(np.mean(np.abs(model.predict(asked)[0] - true)))

    assert error(Predictor(Sizes(), experience=experience)) < 0.3 * error(Predictor(Sizes()))
    twice_as_slow = [Trial(genes=t.genes, steps_s=(2 * t.step_s,)) for t in known[:20]]
    moved = Predictor(Sizes(), experience=experience)
    moved.fit(twice_as_slow)
    assert np.median(np.exp(moved.predict(asked)[0] - true)) == pytest.approx(2, rel=0.1)
