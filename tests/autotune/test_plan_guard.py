"""A plan that "auto" has adopted and that raises later does not end the run: exact training takes its place."""

import logging
import math

import pytest
import torch
from torch import nn

import pliant
from models import batch, new_ddp, train, weights
from pliant.algorithms.plans import plan_of
from pliant.autotune import measurements, tuner
from pliant.autotune.monitor import MonitorResult
from pliant.autotune.trials import run_steps
from pliant.engine.curvature_monitor import CurvatureMonitor
from pliant.engine.weight_exchange import WeightExchange
from pliant.netmodel import PRESETS
from pliant.planner import BASELINES, OWN_EXCHANGE, Genome

BASE = OWN_EXCHANGE[False].plan("auto")
FAILS_AT, STEPS = 14, 60


def adopting(monkeypatch, plan, genes=OWN_EXCHANGE[False]):
    """Let tuners adopt a plan without a search."""

    def choose(self, workload, topology, landed):
        self._genes, self._is_exact = genes, True
        self._note_fallback(plan, self._guard.begin(plan))
        self._advise(workload)
        return math.nan
        yield

    monkeypatch.setattr(tuner.AutoTuner, "_choose", choose)
    monkeypatch.setattr(measurements, "probe", lambda comm, **_: None)
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])


def broken(*_, **__):
    raise ArithmeticError("broken")


def in_inspect(run):
    run._gradients.check_finite = broken


def in_lane(run):
    run._gradients._run_part = broken


def poisoned(run):
    """What comes of finite gradients is not finite."""
    exchange = run._gradients._carry_out

    def spoil(part, context, **options):
        rest = yield from exchange(part, context, **options)
        part.bucket.flat.fill_(math.nan)
        return rest

    run._gradients._carry_out = spoil


def in_weights(run):
    run._executor.of(WeightExchange)[0].after_step = broken


def in_share(run):
    for owned in run._executor.owners._owned.values():
        owned.share = broken


def in_look(run):
    run._executor.of(CurvatureMonitor)[0].after_step = broken


def in_one(run):
    """On one rank alone, when what is collective in the step has been done."""
    if run._comm.rank == 1:
        run._executor.gradients.end_pass = broken


CASES = {
    "inspect": (pliant.onebit(), in_inspect),
    "lane": (pliant.onebit(), in_lane),
    "overflow": (pliant.bytegrad(), poisoned),
    "weights": (pliant.local_sgd(2), in_weights),
    "sharded_optimizer": (pliant.sharded_optimizer(), in_share),
    "look": (pliant.tasc(0.3, power=1), in_look),
    "one rank": (pliant.bytegrad(), in_one),
}


def flown(place, sabotage, num_steps=STEPS):
    """Train with a tuner; return after which steps the plan was adopted and left, and what all has become."""
    ddp = new_ddp(place)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    began = left = None
    with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20, agreement_every=3) as run:
        for step in range(num_steps):
            if step == FAILS_AT:
                assert run.plan.hash != BASE.hash
                sabotage(run)
            train(ddp, optimizer, place.rank, [step])
            if began is None and run.plan.hash != BASE.hash:
                began = run.steps
            if step >= FAILS_AT and left is None and run.plan.hash == BASE.hash:
                left = run.steps
        text, still = run.tuner.explanation, run.trial.guards
    return (began, left), text, still, weights(ddp), [optimizer.state[p]["exp_avg"] for p in ddp.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_a_plan_that_fails_after_it_was_adopted_is_left_on_all_ranks(monkeypatch, caplog, case):
    caplog.set_level(logging.WARNING, "pliant")
    algorithm, sabotage = CASES[case]
    adopting(monkeypatch, plan_of(algorithm))
    first, second = pliant.run_world(2, lambda place: flown(place, sabotage))
    assert first[:3] == second[:3]
    torch.testing.assert_close(first[3:], second[3:], rtol=0, atol=0)
    (_, left), text, still, *_ = first
    assert left is not None
    assert not still
    kind = "every rank's gradient was finite" if case == "overflow" else "ArithmeticError: broken"
    assert f"rank {int(case == 'one rank')}: " in text
    assert kind in text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_advice_is_for_the_plan_that_has_taken_its_place(monkeypatch):
    adopting(monkeypatch, plan_of(pliant.local_sgd(2)))

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(FAILS_AT))
            before = run.tuner.advice.lr_reason
            in_weights(run)
            train(ddp, optimizer, place.rank, range(FAILS_AT, STEPS))
            assert run.plan.hash == BASE.hash
            return before, run.tuner.advice.lr_reason

    for before, after in pliant.run_world(2, body):
        assert "each rank steps on its own" in before
        assert "each rank steps on its own" not in after


@pytest.mark.extended
def test_what_came_before_is_kept_and_what_failed_is_as_if_it_had_not_been(monkeypatch):
    plan = plan_of(pliant.onebit())
    adopting(monkeypatch, plan)
    found = pliant.run_world(2, lambda place: flown(place, in_lane))
    began, left = found[0][0]

    def without(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp, optimizer, BASE, timeout_s=20) as run:
            for step in range(STEPS):
                if step == began:
                    run.switch(plan)
                if step == left:
                    run.switch(BASE, pay=False)
                if step < FAILS_AT or step >= left:
                    train(ddp, optimizer, place.rank, [step])
        return weights(ddp), [optimizer.state[p]["exp_avg"] for p in ddp.parameters()]

    for one, two in zip(found, pliant.run_world(2, without), strict=True):
        torch.testing.assert_close(one[3:], two, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["finish", "begin"])
def test_a_plan_that_cannot_begin_or_end_is_left_too(monkeypatch, caplog, where):
    caplog.set_level(logging.WARNING, "pliant")
    adopting(monkeypatch, plan_of(pliant.local_sgd(4)))
    if where == "begin":
        monkeypatch.setattr("pliant.engine.between_steps.WeightExchange", broken)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(14))
            if where == "finish":
                run._executor.of(WeightExchange)[0].hand_back = broken
        return run.tuner.explanation, weights(ddp)

    (text, first), (other, second) = pliant.run_world(2, body)
    assert text == other
    assert "rank 0: ArithmeticError: broken" in text
    assert torch.equal(first, second)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_time_of_a_plan_that_fails_as_it_is_left_is_not_taken_for_that_of_ddps_own_exchange(monkeypatch):
    """A search after a change begins from what is in force then, and from its step time."""
    adopting(monkeypatch, plan_of(pliant.local_sgd(4)))
    adopt, searched_from = tuner.AutoTuner._choose, []

    def choose(self, workload, topology, result):
        if result is None:
            return (yield from adopt(self, workload, topology, result))
        searched_from.append((self._genes == OWN_EXCHANGE[False], result.step_s))
        return math.nan

    def watch(self, *_):
        step_s = 2.0 if self._run.plan.hash == BASE.hash else 1.0
        yield from run_steps(4)
        return MonitorResult(steps=4, step_s=step_s, usual_s=step_s, at_once=False, changed=True, violation=None)

    monkeypatch.setattr(tuner.AutoTuner, "_choose", choose)
    monkeypatch.setattr(tuner.StepMonitor, "watch", watch)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(experience=None), timeout_s=20) as run:
            for step in range(STEPS):
                train(ddp, optimizer, place.rank, [step])
                if run.plan.hash != BASE.hash:
                    run._executor.of(WeightExchange)[0].hand_back = broken
            return run.tuner.explanation

    assert all("ArithmeticError: broken" in text for text in pliant.run_world(2, body))
    assert set(searched_from) == {(True, 2.0)}


def test_what_was_in_it_is_refused(monkeypatch):
    genes = BASELINES["onebit"]
    assert isinstance(genes, Genome)
    adopting(monkeypatch, genes.plan(), genes)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(10))
            in_lane(run)
            train(ddp, optimizer, place.rank, range(10, 40))
            return run.plan.hash == BASE.hash, run.tuner._rejected.genes >= set(genes.genes) - {
                OWN_EXCHANGE[False].base
            }

    assert pliant.run_world(2, body) == [(True, True)] * 2


def test_what_every_plan_would_raise_is_raised(monkeypatch):
    """A gradient that is not finite, a parameter without one, and weights that differ."""
    plan = plan_of(pliant.bytegrad())
    adopting(monkeypatch, plan)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20, agreement_every=2) as run:
            train(ddp, optimizer, place.rank, range(12))
            x, y = batch(place.rank, 12)
            with pytest.raises(pliant.NonFiniteGradientError):
                (nn.functional.cross_entropy(ddp(x), y) * math.inf).backward()
            train(ddp, optimizer, place.rank, range(12, 30))
            assert run.plan.hash == plan.hash
            if place.rank == 0:
                ddp.module.head.bias.data += 1
            with pytest.raises(pliant.ReplicasDisagreeError):
                train(ddp, optimizer, place.rank, range(30, 34))
            run.__exit__(ValueError, ValueError(), None)

    pliant.run_world(2, body)
