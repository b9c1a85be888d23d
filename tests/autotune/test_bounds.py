""" "auto" looks at what a relaxation does, and gives it up, on all ranks alike, when that is not what was expected."""

import logging
import math
from dataclasses import dataclass

import pytest
import torch

import pliant
from models import new_ddp, train, weights
from planner.made_up_ratios import table
from pliant.algorithms.plans import plan_of
from pliant.autotune import measurements, tuner
from pliant.autotune.bounds import BoundCheck, QualityBounds
from pliant.autotune.quality_probe import QualityMetrics, QualityProbe
from pliant.autotune.rejected import at_least_as_lossy
from pliant.codecs import Qsgd
from pliant.engine.weight_exchange import WeightExchange
from pliant.netmodel import PRESETS
from pliant.planner import BASELINES, OWN_EXCHANGE, Gene, Genome, Quality, Space
from pliant.profiling.gradient_statistics import GradientStatistics
from pliant.spec import Custom

__all__ = ["table"]


@dataclass(frozen=True, kw_only=True)
class Overshoot:
    """Averages exactly, and claims to owe ever more: rank 1 alone, if it is asked to."""

    growth: float = 1.2
    endless_after: float = 1e9

    @property
    def node(self):
        settings = {"growth": self.growth, "endless_after": self.endless_after}
        return Custom(name="overshoot", settings=settings)

    def slots(self, shape, comm):
        return {"residual": None}

    def prepare(self, bucket, comm):
        return None

    def on_ready(self, bucket, state, comm, moment):
        residual = state.flat["residual"]
        residual.add_(bucket.flat).mul_(-self.growth)
        if moment.step > self.endless_after and comm.rank == 1:
            residual.fill_(math.inf)
        comm.all_reduce(bucket.flat).wait()
        bucket.flat.div_(comm.size)


pliant.register("overshoot", Overshoot)


def taking(monkeypatch, plan):
    """Let tuners take a plan without a search."""

    def choose(self, workload, topology, landed):
        self._run.switch(plan)
        self._is_exact = False
        return math.nan
        yield

    monkeypatch.setattr(tuner.AutoTuner, "_choose", choose)
    monkeypatch.setattr(measurements, "probe", lambda comm, **_: None)
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])
    return plan


def flown(place, num_steps=120, bounds=None, lr=0.05, loud_from=10**9):
    """Train with a tuner; return the plan that was in force at last, the explanation, and the weights."""
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    auto = pliant.Auto(quality=2.0, watch=False, bounds=bounds or QualityBounds())
    with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
        train(ddp, optimizer, place.rank, range(min(num_steps, loud_from)))
        if num_steps > loud_from:
            ddp.module.head.weight.register_hook(lambda g: g * 1000)
            train(ddp, optimizer, place.rank, range(loud_from, num_steps))
        found = run.plan, run.tuner.explanation
    return *found, weights(ddp)


def plain(place, num_steps):
    ddp = new_ddp(place)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), place.rank, range(num_steps))
    return weights(ddp)


@pytest.mark.parametrize(
    ("endless_after", "bound"), [(1e9, 100.0), pytest.param(30.0, math.inf, marks=pytest.mark.extended)]
)
def test_a_residual_that_explodes_is_given_up_and_not_paid(monkeypatch, caplog, endless_after, bound):
    caplog.set_level(logging.WARNING, "pliant")
    taking(monkeypatch, plan_of(Overshoot(endless_after=endless_after)))
    (first, why, chosen), (second, other, also) = pliant.run_world(
        2, lambda place: flown(place, bounds=QualityBounds(residual=bound))
    )
    assert first.hash == second.hash == OWN_EXCHANGE[False].plan("auto").hash
    assert why == other
    assert "given up" in why
    assert ("not finite" if endless_after == 30 else "the bound residual is 100") in why
    assert "overshoot" in why
    assert "After step" in why
    assert torch.equal(chosen, also)
    exact, _ = pliant.run_world(2, lambda place: plain(place, 120))
    assert torch.allclose(chosen, exact, atol=1e-3)  # nothing of what it owed has come down on the weights
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].message in why


@pytest.mark.extended
def test_a_gradient_that_jumps_ends_a_relaxation(monkeypatch):
    taking(monkeypatch, BASELINES["powersgd"].plan())
    found = pliant.run_world(2, lambda place: flown(place, 200, loud_from=70, lr=1e-4))
    assert {plan.hash for plan, *_ in found} == {OWN_EXCHANGE[False].plan("auto").hash}
    assert all("the bound gradient_jump is 4" in why for _, why, _ in found)


def test_weights_that_drift_apart_end_a_relaxation(monkeypatch):
    bounds = QualityBounds(distance=1e-4, gradient_jump=math.inf)
    taking(monkeypatch, BASELINES["local_sgd"].plan())
    found = pliant.run_world(2, lambda place: flown(place, 150, bounds=bounds))
    assert all("the bound distance is 0.0001" in why for _, why, _ in found)
    assert torch.equal(found[0][2], found[1][2])


HEALTHY = ["onebit", Genome(Gene("diloco", {"bits": 4, "delay_steps": 2, "every": 8, "fragments": 4}))]
HEALTHY_TOO = [
    *("powersgd", "local_sgd", "bytegrad", "topk", "gossip"),
    Genome(Gene("quantized", {"bits": 4})),
    Genome(Gene("fed_back", {"bits": 4})),
    Genome(Gene("choco", {"bits": 8, "graph": "exponential"})),
]


@pytest.mark.parametrize("what", [*HEALTHY, *(pytest.param(each, marks=pytest.mark.extended) for each in HEALTHY_TOO)])
def test_healthy_relaxations_stay(monkeypatch, what):
    plan = taking(monkeypatch, (BASELINES[what] if isinstance(what, str) else what).plan())
    for found, why, _ in pliant.run_world(2, lambda place: flown(place, 200)):
        assert found.hash == plan.hash, why


def test_what_is_looked_at_is_what_there_is():
    """Beside what the whole gradient, coded on a copy, and the run itself say."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        shadow = GradientStatistics({n: p.numel() for n, p in ddp.module.named_parameters()}, [Qsgd(bits=2)])
        hooks = [
            p.register_post_accumulate_grad_hook(lambda p, n=n: shadow.take(n, p.grad))
            for n, p in ddp.module.named_parameters()
        ]
        with pliant.relax(ddp, optimizer, pliant.qsgd(bits=2)) as run:
            quality_probe = QualityProbe(run)
            quality_probe.begin()
            train(ddp, optimizer, place.rank, [0])
            quality_probe.end()
            shadow.end_step()
            train(ddp, optimizer, place.rank, [1])  # nobody looks
            seen, whole = quality_probe.figures(), shadow.share(place.comm, torch.device("cpu"))
        for hook in hooks:
            hook.remove()
        errors = [error for each in whole.errors.values() for error in each.values()]
        return seen, whole.own, (min(errors), max(errors))

    found = pliant.run_world(2, body)
    assert sum(seen.gradient**2 for seen, *_ in found) / 2 == pytest.approx(found[0][1], rel=1e-4)
    for seen, _, (least, most) in found:
        assert 0 < least / 2 < seen.error < 2 * most
        assert seen.residual == seen.distance == 0.0


def test_the_distance_of_weights_is_from_before_the_exchange_to_after_it():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, "local_sgd") as run:
            train(ddp, optimizer, place.rank, range(7))
            assert run.stats()["consensus_distance"] == 0.0
            before = []
            [exchange] = run._executor.of(WeightExchange)
            taken = exchange._take
            exchange._take = lambda part: (before.append(weights(ddp)), taken(part))[1]
            train(ddp, optimizer, place.rank, [7])
            moved = float((weights(ddp) - before[0]).norm())
            return run.stats()["consensus_distance"], moved

    for distance, moved in pliant.run_world(2, body):
        assert distance == pytest.approx(moved, rel=1e-4)
        assert moved > 0


def figures(**settings) -> QualityMetrics:
    return QualityMetrics(**({"gradient": 1.0, "residual": 0.0, "error": 0.01, "distance": 0.0} | settings))


def test_a_bound_is_crossed_in_two_windows_running():
    judge = BoundCheck(QualityBounds())
    assert judge.verdict(figures()) is None
    assert judge.verdict(figures(error=0.61)) is None
    assert judge.verdict(figures(residual=1000.0)) is None  # another one
    assert judge.verdict(figures()) is None
    assert judge.verdict(figures(error=0.61)) is None
    assert judge.verdict(figures(error=0.61)).why == (
        "the squared error of the codecs was 0.6 above that when the plan was adopted, twice running, and the bound "
        "error_rise is 0.5"
    )


def test_what_is_not_finite_counts_at_once_but_a_gradient_that_a_scaler_skips_does_not():
    for name in ("residual", "error", "distance"):
        verdict = BoundCheck(QualityBounds(residual=math.inf)).verdict(figures(**{name: math.inf}))
        assert "not finite" in verdict.why
    judge = BoundCheck(QualityBounds())
    for gradient in (math.inf, 1.0, math.inf, 1.0, 1.1):
        assert judge.verdict(figures(gradient=gradient)) is None
    assert judge.verdict(figures(gradient=math.inf)) is None
    assert judge.verdict(figures(gradient=math.inf)).bound == "gradient_jump"


def test_a_gradient_that_grows_or_falls_slowly_is_no_jump():
    for factor in (1.3, 0.5):
        judge = BoundCheck(QualityBounds())
        assert all(judge.verdict(figures(gradient=factor**k)) is None for k in range(40))


def test_bounds_are_above_0():
    with pytest.raises(ValueError, match="the bound residual is 0, but what it bounds is never negative"):
        QualityBounds(residual=0)
    with pytest.raises(ValueError, match="the bound distance is nan"):
        QualityBounds(distance=math.nan)


def test_what_was_given_up_and_what_is_stronger_is_not_admitted_again(table):
    from planner.examples import FLAT, WORKLOAD

    table()

    quality = Quality(
        budget=3.0, rejected=frozenset(at_least_as_lossy(Gene("sparse", {"choice": "topk", "ratio": 0.02})))
    )
    assert Genome(Gene("sparse", {"choice": "topk", "ratio": 0.05})) in Space(WORKLOAD, FLAT, quality)
    for choice, ratio in (("topk", 0.02), ("topk", 0.01), ("randomk", 0.01)):
        gene = Gene("sparse", {"choice": choice, "ratio": ratio})
        assert Genome(gene) not in Space(WORKLOAD, FLAT, quality)
        assert Genome(gene) in Space(WORKLOAD, FLAT, Quality(budget=3.0))
