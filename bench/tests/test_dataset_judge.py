"""Figures of merit on predictions that are perfect, reversed, and off by a factor."""

import numpy as np
import pytest

from pliant.planner import BASELINES, Trial
from pliant_bench.dataset.judge import judged

TIMES = (0.5, 0.2, 0.4, 0.1, 0.3, 0.6, 0.8, 0.7, 1.0, 0.9, 1.2, 1.1)
TRIALS = [Trial(genes=g, steps_s=(t, t, 1.01 * t)) for g, t in zip(BASELINES.values(), TIMES, strict=False)]
LOG_S = np.log(TIMES)


def test_the_truth_is_perfect():
    found = judged(LOG_S, TRIALS)
    assert found == pytest.approx(
        {"pair": 1, "tau": 1, "regret@1": 0, "regret@5": 0, "regret@10": 0, "error": 0, "p90": 0}, abs=1e-9
    )


def test_the_reverse_is_as_wrong_as_can_be():
    found = judged(-LOG_S, TRIALS)
    assert found["pair"] == pytest.approx(0)
    assert found["tau"] == pytest.approx(-1)
    assert found["regret@1"] == pytest.approx(11)
    assert found["regret@10"] == pytest.approx(2)


def test_a_factor_changes_errors_and_no_order():
    found = judged(LOG_S + np.log(1.2), TRIALS)
    assert [found["pair"], found["tau"]] == pytest.approx([1, 1])
    assert [found["error"], found["p90"]] == pytest.approx([0.2, 0.2])
    assert "error" not in judged(LOG_S, TRIALS, absolute=False)


def test_pairs_within_their_noise_do_not_count():
    names = list(BASELINES.values())
    noisy = [Trial(genes=names[k], steps_s=(t - 0.05, t, t + 0.05)) for k, t in enumerate((1.0, 1.01, 2.0))]
    assert judged(np.log([1.01, 1.0, 2.0]), noisy)["pair"] == 1  # the first two cannot be told apart


@pytest.mark.parametrize("times", [(1.0,), (1.0, 1.0, 1.0)])
def test_plans_without_an_order_have_errors_alone(times):
    trials = [Trial(genes=g, steps_s=(t, t)) for g, t in zip(BASELINES.values(), times, strict=False)]
    found = judged(np.log(np.arange(1, len(times) + 1)), trials)
    assert found.keys() == {"regret@1", "regret@5", "regret@10", "error", "p90"}
    assert np.isfinite(list(found.values())).all()


def test_predictions_that_are_all_alike_order_nothing():
    found = judged(np.zeros(len(TRIALS)), TRIALS)
    assert (found["pair"], found["tau"]) == (0, 0)
