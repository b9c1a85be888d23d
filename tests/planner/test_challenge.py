"""A search from a start: the best predicted plan comes first, others only where they are predicted to be better."""

import math

import numpy as np
import pytest

from planner.examples import FLAT, WORKLOAD, Rough, exactly, true_step_s
from pliant.planner import BASELINES, Gene, Genome, Quality, SearchLimits, Space, Trial
from pliant.planner.challenge import CHANGED, SearchStart, challenge_steps, is_changed
from waiting import made_up_clock

LIMITS = SearchLimits(max_trials=12, num_drawn=40)
DDP = BASELINES["ddp"]


class Wrong(Rough):
    """A model that takes one family for much faster than it is, until it has seen a plan of it."""

    def __init__(self, family, factor=0.1):
        super().__init__()
        self.family, self.factor = family, factor

    def fit(self, trials):
        super().fit(trials)
        if any(trial.genes.base.family == self.family for trial in trials):
            self.factor = 1.0

    def predict(self, candidates):
        log_s, deviation = super().predict(candidates)
        wrong = [genes.base.family == self.family for genes in candidates]
        return log_s + np.log(np.where(wrong, self.factor, 1.0)), deviation


def space(budget=1.6):
    return Space(WORKLOAD, FLAT, Quality(budget=budget))


def run(model, limits=LIMITS, measure=exactly, clock=None, **start):
    """Search with a clock on which a trial takes ten of its steps, in which nothing else takes time."""
    clock, asked = clock or made_up_clock(), []
    begins = SearchStart(clock=clock.perf_counter, steps=lambda: 10 * len(asked), **start)
    asking = challenge_steps(space(), model, limits, begins)
    trial = None
    try:
        while True:
            genes, limit_s = next(asking) if trial is None else asking.send(trial)
            asked.append(genes)
            trial = measure(genes, give_up_above_s=limit_s)
            clock.sleep(10 * (trial.step_s if trial.steps_s else true_step_s(genes)))
    except StopIteration as end:
        return end.value, asked


def test_the_best_predicted_plan_comes_first_and_few_follow_that_are_predicted_to_be_as_good():
    found, asked = run(Rough())
    where, model = space(), Rough()
    best_s = min(np.exp(model.predict([g])[0][0]) * where.quality.factor(g) for g in BASELINES.values() if g in where)
    first_s = np.exp(model.predict(asked[:1])[0][0]) * where.quality.factor(asked[0])
    assert first_s <= best_s
    assert found.stopped == "no plan was predicted to be 5 % better"
    assert len(found.trials) == len(found.predicted_s) == len(asked) <= 4
    assert found.best == min(asked, key=lambda genes: true_step_s(genes) * where.quality.factor(genes))


def test_a_plan_that_disappoints_is_challenged_and_the_same_trials_lead_to_the_same_choice():
    found, asked = run(Wrong("local"))
    assert asked[0].base.family == "local"
    assert found.best.base.family != "local"
    again, same = run(Wrong("local"))
    assert (again, same) == (found, asked)


def test_no_more_is_tried_once_challengers_have_cost_a_tenth_of_the_time():
    def slow(genes, *, give_up_above_s):
        return (
            Trial(genes=genes, steps_s=(10 * true_step_s(genes),))
            if genes != asked_first
            else exactly(genes, give_up_above_s=give_up_above_s)
        )

    asked_first = run(Rough())[1][0]

    class Hopeful(Rough):
        def predict(self, candidates):
            log_s, deviation = super().predict(candidates)
            return log_s - [0.0 if genes == asked_first else 3.0 for genes in candidates], deviation

    known = SearchLimits(max_trials=12, num_drawn=40, known=[exactly(asked_first, give_up_above_s=1e9)])
    found, asked = run(Hopeful(), known, slow)
    assert "more than a tenth of the time" in found.stopped
    assert len(asked) == 2  # the first has cost what 90 steps take, and the second was to save that
    assert found.best == asked_first


@pytest.mark.parametrize(("factor", "leaving_s", "apart"), [(0.95, 0.0, True), (0.95, 1.0, False), (0.8, 1.0, True)])
def test_the_first_plan_is_cheap_to_leave_where_that_costs_a_tenth_of_a_step_at_most(factor, leaving_s, apart):
    """Ranks that gossip are apart, and leave it with a mean of weights."""

    class TwoBest(Rough):
        def predict(self, candidates):
            step_s = [{"gossip": factor, "tasc": 1.0}.get(genes.base.family, 9.0) for genes in candidates]
            factors = [space().quality.factor(genes) for genes in candidates]
            return np.log(np.array(step_s) / factors), np.full(len(step_s), 0.1)

    _, asked = run(TwoBest(), leaving_s=leaving_s)
    assert asked[0].base.family == ("gossip" if apart else "tasc")


class Alike(Rough):
    """Predicts the same for plans of two families."""

    def predict(self, candidates):
        step_s = [{"gossip": 1.0, "tasc": 1.0}.get(genes.base.family, 9.0) for genes in candidates]
        factors = [space().quality.factor(genes) for genes in candidates]
        return np.log(np.array(step_s) / factors), np.full(len(step_s), 0.1)


def test_what_was_measured_and_predicted_counts_for_a_plan_that_would_save_nothing():
    found, asked = run(Alike())
    waits, same = run(Alike(), prepared_s=100.0)
    assert same == asked
    assert waits.resumes_s == pytest.approx(found.resumes_s + 10 * 100.0)
    found, asked = run(Wrong("local"))
    _, promising = run(Wrong("local"), prepared_s=100.0)
    assert asked[: len(promising)] == promising
    assert len(promising) > 1  # since the first disappoints, and the next is predicted to be better


def test_where_nothing_was_tried_and_nothing_is_predicted_to_be_better_one_plan_is_tried():
    """What was watched says little of other plans, and a wrong prediction would never be found out."""
    exact = Genome(Gene("exact", {"bits": 16}))
    limits = SearchLimits(max_trials=12, num_drawn=40, known=[Trial(genes=exact, steps_s=(1.02,))])
    _, asked = run(Alike(), limits, prepared_s=100.0)
    assert [genes.base.family for genes in asked] in (["gossip"], ["tasc"])
    other = Genome(Gene("exact", {"bits": 32}))
    _, asked = run(Alike(), limits, prepared_s=100.0, reference=other)
    assert asked[0] == other


def test_a_trial_that_costs_too_much_now_is_made_once_a_tenth_of_the_time_suffices():
    """Ranks that gossip are left with a mean of weights; `tasc` is as good, and is tried first."""
    clock = made_up_clock()
    found, asked = run(Alike(), clock=clock, leaving_s=50.0)
    assert [genes.base.family for genes in asked] == ["tasc"]
    assert clock.now_s < found.resumes_s < math.inf
    limits = SearchLimits(max_trials=12, num_drawn=40, known=list(found.trials))
    again, asked = run(Alike(), limits, clock=clock, leaving_s=50.0, spent_s=found.spent_s)
    assert not asked
    assert again.resumes_s == pytest.approx(found.resumes_s, rel=0.5)
    clock.sleep(1.01 * found.resumes_s)
    _, asked = run(Alike(), limits, clock=clock, leaving_s=50.0, spent_s=found.spent_s)
    assert asked[0].base.family == "gossip"


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.25, True), (1.35, False), (0.7, False)])
def test_a_kept_plan_comes_first_and_ends_the_search_where_it_takes_another_time(factor, holds):
    found, asked = run(Rough(), first=DDP, expected_s=factor * true_step_s(DDP))
    assert asked[0] == DDP
    assert (found.stopped != CHANGED) == holds
    assert (asked == [DDP, DDP]) != holds
    assert is_changed(factor, 1.0) != holds


def test_a_kept_plan_that_was_slow_in_the_first_steps_of_a_run_alone_is_kept():
    factors = iter((1.4, 1.0))

    def measure(genes, *, give_up_above_s):
        return Trial(genes=genes, steps_s=(next(factors, 1.0) * true_step_s(genes),))

    found, asked = run(Rough(), measure=measure, first=DDP, expected_s=true_step_s(DDP))
    assert asked[:2] == [DDP, DDP]
    assert asked.count(DDP) == 2
    assert found.stopped != CHANGED
    assert [trial.step_s for trial in found.trials if trial.genes == DDP] == [true_step_s(DDP)]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_plan_that_was_in_force_is_timed_again_before_another_is_kept_after_a_change(is_over):
    best = run(Rough())[0].best
    known = SearchLimits(max_trials=2, num_drawn=40, known=[Trial(genes=best, steps_s=(9 * true_step_s(best),))])

    def measure(genes, *, give_up_above_s):
        factor = 9 if genes == best and not is_over else 1
        return Trial(genes=genes, steps_s=(factor * true_step_s(genes),))

    found, asked = run(Rough(), known, measure, reference=DDP)
    assert 1 < len(asked) <= 3
    assert asked.index(best) == len(asked) - 1
    assert (found.best == best) == is_over
    assert [trial.genes for trial in found.trials] == [best, *asked[:-1]]
    assert found.trials[0].step_s == (1 if is_over else 9) * true_step_s(best)
    assert len(found.predicted_s) == len(found.trials)


def test_a_kept_plan_that_is_not_allowed_is_not_tried():
    _, asked = run(Rough(), first=Genome(Gene("sparse", {"choice": "randomk", "ratio": 0.01})), expected_s=1.0)
    assert asked[0].base.family != "sparse"


def test_what_is_known_by_then_is_told_after_each_trial():
    told = []
    found, asked = run(Wrong("local"), tell=told.append)
    assert [len(each.trials) for each in told] == list(range(1, len(asked) + 1))
    assert told[-1].best == found.best


def test_where_every_trial_fails_the_first_reason_is_raised():
    def broken(genes, *, give_up_above_s):
        return Trial(genes=genes, status="failed", reason="no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run(Rough(), SearchLimits(max_trials=2, num_drawn=10), broken)
