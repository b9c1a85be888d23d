"""Turns of plans with torch's own exchange: the faster one is found, and no turn is spent on what is surely slower."""

import math
from types import SimpleNamespace

import pytest
import torch

import pliant
from pliant.autotune import trials
from pliant.autotune.trials import UNCOUNTED, TrialRunner
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.trial import PlanOnTrial

BASE, ONE, OTHER, SLOWER = (resolve_plan(name, None) for name in ("allreduce", "bytegrad", "bf16", "onebit"))
_TURN = UNCOUNTED + 3
"""Steps of one turn of a plan of long steps."""


class Paced:
    """A run whose steps take what its plan is said to take."""

    def __init__(self, seconds):
        self.seconds = {plan.hash: s for plan, s in zip((BASE, ONE, OTHER), seconds, strict=True)}
        self.plan, self.trial, self.made = BASE, PlanOnTrial(), dict.fromkeys(self.seconds, 0)
        self.now_s = 0.0

    def switch(self, plan, *, pay=True):
        self.plan = plan

    def put_on_trial(self, plan):
        model = torch.nn.Linear(1, 1)
        self.trial.begin(model, (torch.optim.SGD(model.parameters(), lr=0.1),), {})
        self.plan = plan

    def step(self):
        self.now_s += self.seconds[self.plan.hash]
        self.made[self.plan.hash] += 1


def compared(monkeypatch, run, ratios=(1.0, 1.0), turns=3, most_turns=math.inf, plans=(ONE, OTHER)):
    run = run if isinstance(run, Paced) else Paced(run)
    monkeypatch.setattr(trials, "time", SimpleNamespace(perf_counter=lambda: run.now_s))

    def body(place):
        steps = TrialRunner(run, place.comm, 0.6, BASE).compare(plans, ratios, turns, most_turns=most_turns)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            run.step()

    return pliant.run_world(1, body)[0], run


@pytest.mark.parametrize(
    ("seconds", "ratios", "best", "faster"),
    [
        ((1.0, 0.2, 0.9), (1.0, 1.0), 0, True),
        ((1.0, 0.9, 0.2), (1.0, 1.0), 1, True),
        ((1.0, 0.8, 0.85), (1.2, 1.0), 1, True),
        ((1.0, 0.9, 0.95), (1.2, 1.1), 1, False),
        ((1.0, 3.0, 2.0), (1.0, 1.0), 1, False),
    ],
)
def test_the_fastest_to_the_same_accuracy_is_found(monkeypatch, seconds, ratios, best, faster):
    found, run = compared(monkeypatch, seconds, ratios)
    assert (found.best, found.is_faster) == (best, faster)
    assert found.exact_s == pytest.approx(seconds[0])
    assert run.plan.hash == BASE.hash


def test_torchs_own_exchange_takes_one_turn_where_a_plan_is_faster_by_more_than_a_half(monkeypatch):
    found, run = compared(monkeypatch, (1.0, 0.5, 0.52))
    assert run.made[BASE.hash] == _TURN
    assert len(found.gains) == 1
    assert run.made[ONE.hash] == run.made[OTHER.hash] == 3 * _TURN


def test_it_takes_every_turn_where_no_plan_is_surely_faster(monkeypatch):
    _, run = compared(monkeypatch, (1.0, 0.95, 0.96))
    assert run.made[BASE.hash] == 3 * _TURN


@pytest.mark.parametrize(("most_turns", "made"), [(1, 1), (2, 2), (4, 4), (5.9, 5), (math.inf, 6)])
def test_there_are_no_more_turns_than_there_is_room_for(monkeypatch, most_turns, made):
    found, run = compared(monkeypatch, (1.0, 0.999, 1.001), turns=3, most_turns=most_turns)
    alternating = run.made[BASE.hash] // _TURN
    assert alternating == min(made, 3)  # gains agree after three turns
    assert len(found.gains) == alternating


class Breaking(Paced):
    """A run in which two of three plans fail in their second turn."""

    def __init__(self):
        super().__init__((1.0, 0.5, 0.52))
        self.seconds[SLOWER.hash], self.made[SLOWER.hash] = 0.9, 0

    def put_on_trial(self, plan):
        super().put_on_trial(plan)
        if plan.hash != SLOWER.hash and self.made[plan.hash]:
            self.trial.fail("ArithmeticError: broken")

    def undo(self, plan):
        self.plan = plan


def test_plans_may_fail_when_all_others_have_dropped_out(monkeypatch):
    found, run = compared(monkeypatch, Breaking(), (1.0, 1.0, 1.0), plans=(ONE, OTHER, SLOWER))
    assert sorted(found.failed) == [0, 1]
    assert found.best == 2
    assert found.gains == (pytest.approx(1 / 0.9),)
    assert run.plan.hash == BASE.hash


@pytest.mark.parametrize("step_s", [1e-4, 0.01, 0.3, 2.0])
def test_a_trial_takes_no_more_steps_than_was_said(monkeypatch, step_s):
    for most_blocks in (3, 7, 16):
        run = Paced((step_s, step_s, step_s))
        monkeypatch.setattr(trials, "time", SimpleNamespace(perf_counter=lambda run=run: run.now_s))

        def body(place, run=run, most_blocks=most_blocks):
            runner = TrialRunner(run, place.comm, 0.6, BASE, most_blocks)
            for plan in (BASE, ONE):
                trial = runner.time_plan(plan)
                for _ in trial:
                    run.step()
            return [runner.num_steps(plan) for plan in (BASE, ONE)], runner.num_steps(ONE, step_s)

        most, expected = pliant.run_world(1, body)[0]
        assert [run.made[plan.hash] < bound for plan, bound in zip((BASE, ONE), most, strict=True)] == [True, True]
        assert run.made[ONE.hash] == expected - 1  # without the one after a failure
