"""The search runs few plans, finds the best or nearly, and says why it ended."""

import random
import statistics
import sys

import numpy as np
import pytest

from planner.examples import FLAT, WORKLOAD, Rough, exactly, true_step_s
from pliant.planner import BASELINES, Genome, Quality, SearchLimits, Space, Trial, search
from waiting import made_up_clock


def space(budget: float = 1.6) -> Space:
    return Space(WORKLOAD, FLAT, Quality(budget=budget))


def cost(where: Space, genes: Genome) -> float:
    return true_step_s(genes) * where.quality.ratio(genes)


def test_it_comes_within_two_percent_of_the_best_of_all_plans_and_beats_random_search():
    where = space()
    best = min(cost(where, genes) for genes in where.enumerate())
    regrets, blind = [], []
    for seed in range(5):
        found = search(where, Rough(), exactly, SearchLimits(max_trials=60, num_candidates=100, seed=seed))
        regrets.append(cost(where, found.best) / best - 1)
        rng = random.Random(seed)
        blind.append(min(cost(where, where.sample(rng)) for _ in range(60)) / best - 1)
        assert len(found.trials) <= 60
    assert statistics.median(regrets) <= 0.02
    assert statistics.median(regrets) < statistics.median(blind)


def test_the_best_predicted_of_builders_and_samples_are_run_first_and_nothing_twice():
    where, model = space(), Rough()
    found = search(where, model, exactly, SearchLimits(max_trials=40, num_candidates=60, num_drawn=50, num_seeds=6))
    builders = [genes for genes in BASELINES.values() if genes in where]
    of_builders = model.predict(builders)[0] + np.log([where.quality.ratio(g) for g in builders])
    first = [t.genes for t in found.trials[:6]]
    said = Rough().predict(first)[0] + np.log([where.quality.ratio(g) for g in first])
    assert said.min() <= of_builders.min()
    assert len({t.genes for t in found.trials}) == len(found.trials)


def test_those_run_first_differ():
    class NearlyEven(Rough):
        def predict(self, candidates):
            return np.array([0.0 if g.base.family == "quantized" else 0.05 for g in candidates]), np.zeros(
                len(candidates)
            )

    found = search(space(), NearlyEven(), exactly, SearchLimits(max_trials=4, num_seeds=4, num_candidates=60))
    first, *others = [t.genes.base.family for t in found.trials]
    assert first == "quantized"
    assert set(others) != {"quantized"}


def test_all_builders_can_be_run_first():
    limits = SearchLimits(max_trials=40, num_candidates=60, num_drawn=0, num_seeds=0)
    found = search(space(), Rough(), exactly, limits)
    inside = [genes for genes in BASELINES.values() if genes in space()]
    assert {t.genes for t in found.trials[: len(inside)]} == set(inside)


def test_what_is_known_is_learned_from_and_not_run_again():
    fast = Trial(genes=BASELINES["ddp-bf16"], steps_s=(1e-3,))
    model, asked = Rough(), []

    def measure(genes: Genome, *, give_up_above_s: float) -> Trial:
        asked.append((genes, give_up_above_s))
        return exactly(genes, give_up_above_s=give_up_above_s)

    found = search(
        space(),
        model,
        measure,
        SearchLimits(max_trials=6, known=[fast], num_seeds=3, batch=3, num_candidates=60, num_drawn=60),
    )
    assert model.fits[0] == 1
    assert len(asked) == 6
    assert found.trials[0] == fast
    assert found.best == fast.genes
    assert fast.genes not in [genes for genes, _ in asked]
    assert all(limit_s <= 2e-3 for _, limit_s in asked)


def test_the_model_learns_after_each_batch():
    model = Rough()
    search(space(), model, exactly, SearchLimits(max_trials=30, batch=5, num_candidates=60))
    assert model.fits == sorted(model.fits)
    assert all(later - earlier == 5 for earlier, later in zip(model.fits, model.fits[1:], strict=False))


def test_failures_are_not_fast_and_do_not_end_the_search():
    limits = SearchLimits(max_trials=40, num_candidates=60)
    family = search(space(), Rough(), exactly, limits).best.base.family

    def fragile(genes: Genome, *, give_up_above_s: float) -> Trial:
        if genes.base.family == family:
            return Trial(genes=genes, status="failed", reason="out of memory")
        return exactly(genes, give_up_above_s=give_up_above_s)

    found = search(space(), Rough(), fragile, limits)
    assert found.best.base.family != family
    assert any(t.status == "failed" for t in found.trials)


def test_if_all_fail_the_first_reason_is_told():
    def broken(genes: Genome, *, give_up_above_s: float) -> Trial:
        del give_up_above_s
        return Trial(genes=genes, status="failed", reason="no route to host")

    with pytest.raises(RuntimeError, match="20 trials came to an end; the first because: no route to host"):
        search(space(), Rough(), broken, SearchLimits(max_trials=20, num_candidates=30))


def test_a_trial_may_be_given_up_when_it_is_surely_slower():
    limits = []

    def racing(genes: Genome, *, give_up_above_s: float) -> Trial:
        limits.append(give_up_above_s / true_step_s(genes))
        status = "aborted" if true_step_s(genes) > give_up_above_s else "ok"
        return Trial(genes=genes, steps_s=(true_step_s(genes),), status=status)

    found = search(space(), Rough(), racing, SearchLimits(max_trials=40, num_candidates=60))
    assert limits[0] == float("inf")
    assert any(t.status == "aborted" for t in found.trials)
    assert min(cost(space(), t.genes) for t in found.trials) == cost(space(), found.best)


def test_it_ends_when_time_is_over(monkeypatch):
    clock = made_up_clock()
    monkeypatch.setattr(sys.modules["pliant.planner.search"], "time", clock)

    def slow(genes: Genome, *, give_up_above_s: float) -> Trial:
        clock.sleep(2.0)
        return exactly(genes, give_up_above_s=give_up_above_s)

    found = search(space(), Rough(), slow, SearchLimits(max_seconds=7.0))
    assert found.stopped == "7 s were over"
    assert len(found.trials) == 4


def test_it_ends_when_nothing_better_is_expected():
    small = Space(WORKLOAD, FLAT, Quality())
    found = search(small, Rough(), exactly, SearchLimits(max_trials=10**6, num_candidates=400))
    assert found.stopped.startswith(("no plan is expected", "every plan"))
