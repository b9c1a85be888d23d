"""A trial of "auto" is a transaction: whatever a plan raises in it, training goes on as if its steps had not been."""

import logging
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import pliant
from models import batch, new_ddp, train, weights
from pliant.algorithms.plans import plan_of
from pliant.autotune import measurements, plan_search, searches, tuner
from pliant.autotune.trials import TrialRunner
from pliant.codecs import Qsgd
from pliant.engine.curvature_monitor import CurvatureMonitor
from pliant.engine.weight_exchange import WeightExchange
from pliant.netmodel import PRESETS
from pliant.planner import OWN_EXCHANGE, Gene, Genome, SearchResult, Space
from pliant.spec import Custom

WHERE = ("slots", "prepare", "before", "after", "poison", "nowhere")
BASE = OWN_EXCHANGE[False].plan("auto")


@dataclass(frozen=True, kw_only=True)
class Breaks:
    """The mean of gradients with what it owes, which breaks at one place."""

    where: float = 0

    @property
    def node(self):
        return Custom(name="breaks", settings={"where": self.where})

    def _break(self, place):
        if place == WHERE[int(self.where)]:
            raise ArithmeticError(f"broken: {place}")

    def slots(self, shape, comm):
        self._break("slots")
        return {"residual": None}

    def prepare(self, bucket, comm):
        self._break("prepare")

    def on_ready(self, bucket, state, comm, moment):
        self._break("before")
        bucket.flat.add_(state.flat["residual"])
        state.flat["residual"].copy_(bucket.flat).mul_(0.5)
        bucket.flat.mul_(0.5)
        comm.all_reduce(bucket.flat).wait()
        bucket.flat.div_(comm.size)
        self._break("after")
        if WHERE[int(self.where)] == "poison":
            bucket.flat.fill_(math.nan)


pliant.register("breaks", Breaks)


def broken(*_, **__):
    raise ArithmeticError("broken")


def of(run, kind):
    return run._executor.of(kind)[0]


def in_inspect(run):
    run._gradients.check_finite = broken


def in_weights(run):
    of(run, WeightExchange).after_step = broken


def in_close(run):
    of(run, WeightExchange).hand_back = broken


def in_look(run):
    of(run, CurvatureMonitor).after_step = broken


def in_one(run):
    """On one rank alone, when what is collective in the step has been done."""
    compare = run._compare

    def compare_all():
        compare()
        if run._comm.rank == 1 and run.plan.hash != BASE.hash:
            broken()

    run._compare = compare_all


def spoiled(run):
    of(run, WeightExchange).after_step = lambda _: [p.data.fill_(math.nan) for p in run.model.parameters()]


CASES = {
    **{place: (plan_of(Breaks(where=k)), lambda run: None) for k, place in enumerate(WHERE[:-1])},
    "inspect": (plan_of(pliant.bytegrad()), in_inspect),
    "weights": (plan_of(pliant.local_sgd(2)), in_weights),
    "close": (plan_of(pliant.local_sgd(2)), in_close),
    "look": (plan_of(pliant.tasc(0.3, power=1)), in_look),
    "one rank": (plan_of(pliant.bytegrad()), in_one),
    "spoiled": (plan_of(pliant.local_sgd(2)), spoiled),
}


def trying(monkeypatch, plan, sabotage, seen):
    """Let tuners try one plan, in which something breaks, and nothing else."""

    def choose(self, workload, topology, landed):
        run = self._run
        run.switch(plan_of(Breaks(where=WHERE.index("nowhere"))))  # which owes something when the trial begins
        yield
        first = run.steps
        self._trials = TrialRunner(run, self._comm, 0.0, BASE)
        trial = self._trials.time_plan(plan)
        next(trial)
        if run.plan.hash == plan.hash:
            sabotage(run)
        yield
        blocks_s, why = yield from trial
        last = run.steps - 1  # one more was made under the base plan
        seen[self._comm.rank] = first, last, blocks_s, why
        assert run.plan.hash == BASE.hash
        assert not run.trial.is_on
        return math.nan

    monkeypatch.setattr(tuner.AutoTuner, "_choose", choose)
    monkeypatch.setattr(measurements, "probe", lambda comm, **_: None)
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])


def flown(place, num_steps=18, **options):
    ddp = new_ddp(place)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    auto = pliant.Auto(watch=False)
    with pliant.relax(ddp, optimizer, auto, timeout_s=20, **options) as run:
        train(ddp, optimizer, place.rank, range(num_steps))
        assert run.steps == num_steps
    return weights(ddp), [b.clone() for b in ddp.buffers()], optimizer.state_dict()["state"]


@pytest.mark.parametrize("case", CASES)
def test_what_fails_in_a_trial_is_as_if_it_had_not_been(monkeypatch, case):
    plan, sabotage = CASES[case]
    seen = {}
    trying(monkeypatch, plan, sabotage, seen)
    options = {"nonfinite": "propagate"} if case == "spoiled" else {}
    found = pliant.run_world(2, lambda place: flown(place, **options))
    (first, last, blocks_s, why), other = seen[0], seen[1]
    assert other == seen[0]
    assert not blocks_s
    kind = {"poison": "NonFiniteGradientError", "spoiled": "weights have become NaN"}.get(
        case, "ArithmeticError: broken"
    )
    assert kind in why
    assert why.startswith("rank 1" if case == "one rank" else "rank 0")

    def without(place):
        """The same steps, but for those of the trial."""
        ddp = new_ddp(place)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp, optimizer, BASE) as run:
            for step in range(18):
                if step == first - 1:
                    run.switch(plan_of(Breaks(where=WHERE.index("nowhere"))))
                if step == first:
                    run.switch(BASE)
                if not first <= step < last:
                    train(ddp, optimizer, place.rank, [step])
        return weights(ddp), [b.clone() for b in ddp.buffers()], optimizer.state_dict()["state"]

    assert last - first == {"slots": 0, "close": 6, "spoiled": 6, "weights": 6}.get(case, 5)
    for one, two in zip(found, pliant.run_world(2, without), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_a_plan_on_trial_is_adopted_as_it_is():
    plan = plan_of(pliant.local_sgd(2))

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, BASE, timeout_s=20) as run:
            run.put_on_trial(plan)
            executor, (exchange,) = run._executor, run._executor.of(WeightExchange)
            train(ddp, optimizer, place.rank, [0])
            compared_on_trial = exchange._agreement is not None  # whose steps may be undone
            run.adopt(plan)
            train(ddp, optimizer, place.rank, [1, 2])
            found = run._executor is executor, compared_on_trial, exchange._agreement is not None
            kept = run.trial.guards, run.trial.is_on
            run.trial.end()
            return *found, *kept

    assert pliant.run_world(2, body) == [(True, False, True, True, False)] * 2


class Wide(nn.Module):
    """With parameters that are large enough to be coded."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 600), nn.ReLU(), nn.Linear(600, 5))

    def forward(self, x):
        return self.layers(x)


ASKED = (Genome(Gene("quantized", {"bits": 4})), Genome(Gene("exact", {"bits": 16})))


def asking(monkeypatch):
    """Let the first rank ask for two plans, the first of which breaks on all ranks; return what it refuses then."""
    monkeypatch.setattr(Qsgd, "encode", broken)
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])
    monkeypatch.setattr(tuner, "_ENOUGH_S", 0.0)
    refused = []

    def search(self):
        trials = []
        for genes in ASKED:
            trials.append((yield genes, math.inf))
            refused.append(genes not in Space(self.conditions.workload, self.conditions.topology, self.quality))
        return SearchResult(best=ASKED[1], trials=tuple(trials), stopped="")

    monkeypatch.setattr(plan_search.PlanSearch, "_search", search)
    monkeypatch.setattr(searches.Searches, "gain", lambda *_: 2.0)
    return refused


def test_it_is_refused_and_said(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "pliant")
    refused, said = asking(monkeypatch), set()

    def body(place):
        ddp = new_ddp(place, model=Wide)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        auto = pliant.Auto(quality=1.1, watch=False, probe_s=0.1)
        with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
            for step in range(300):
                train(ddp, optimizer, place.rank, [step])
                said.add(run.tuner.explanation.partition("\n")[0])
                if not run.tuner.explanation.startswith("auto is still"):
                    break
            return run.tuner.explanation, weights(ddp)

    (text, first), (other, second) = pliant.run_world(2, body)
    assert text == other
    assert "A plan failed in its trial, which was undone, and is not tried again in this run: rank 0: Arithm" in text
    assert refused == [True, False]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert torch.equal(first, second)
    assert "auto is still watching the first steps." in said
    assert {f"auto is still searching: trial {k} of at most 12 is under way." for k in (1, 2)} <= said


def train_endlessly(ddp, optimizer, rank, steps):
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(ddp(x), y) * math.inf).backward()
        optimizer.step()


def test_an_error_of_the_callers_own_is_raised(monkeypatch):
    """Also if it comes up in a trial first: there it is undone, and the base plan meets it."""
    seen = {}
    trying(monkeypatch, plan_of(pliant.bytegrad()), lambda run: None, seen)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(10))
            before = weights(ddp)
            with pytest.raises(pliant.NonFiniteGradientError):
                train_endlessly(ddp, optimizer, place.rank, range(10, 30))
            assert run.plan.hash == BASE.hash
        return before, weights(ddp)

    for before, after in pliant.run_world(2, body):
        assert after.isfinite().all()
        assert torch.allclose(before, after, atol=0.1)


def test_a_run_that_closes_in_the_middle_of_a_trial_that_has_failed_undoes_it_and_says_so(monkeypatch, caplog):
    seen = {}
    trying(monkeypatch, plan_of(pliant.bytegrad()), in_one, seen)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(watch=False), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(6))
            assert run.trial.is_on
        return weights(ddp), run.tuner.explanation

    (first, text), (second, other) = pliant.run_world(2, body)
    assert torch.equal(first, second)
    assert text == other
    assert "rank 1: ArithmeticError: broken" in text
    assert ["rank 1: ArithmeticError: broken" in r.message for r in caplog.records if r.name == "pliant"] == [True]


def loss_of(kind, z, y):
    """Of what a model returns, and labels."""
    if kind == "softmax":
        return nn.functional.cross_entropy(z, y)
    return (z.values if kind == "odd" else z).square().mean()


class Odd:
    """An output in which nobody looks for tensors."""

    def __init__(self, values):
        self.values = values


class Returns(Wide):
    """Returns numbers, or an object around them."""

    odd = False

    def forward(self, x):
        return Odd(self.layers(x)) if self.odd else self.layers(x)


class ReturnsOdd(Returns):
    odd = True


@pytest.mark.parametrize(
    ("kind", "optimizer", "admitted"),
    [
        ("softmax", "SGD", ["tasc", "local"]),
        ("odd", "SGD", None),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in (("numbers", "SGD", ["local"]), ("softmax", "AdamW", []))
        ),
    ],
)
def test_what_is_not_known_of_a_training_is_not_tried(monkeypatch, kind, optimizer, admitted):
    asked = []

    def search(self):
        genes = {"tasc": {"agreement": "leader", "ratio": 0.1}, "local": {"every": 2}}
        asked.append([name for name, settings in genes.items() if self.quality.admits(Gene(name, settings))])
        trial = yield Genome(Gene("exact", {"bits": 32})), math.inf
        return SearchResult(best=trial.genes, trials=(trial,), stopped="")

    monkeypatch.setattr(plan_search.PlanSearch, "_search", search)
    monkeypatch.setattr(searches.Searches, "gain", lambda *_: 2.0)
    monkeypatch.setattr(tuner, "_ENOUGH_S", 0.0)

    def body(place):
        ddp = new_ddp(place, model=ReturnsOdd if kind == "odd" else Returns)
        own = getattr(torch.optim, optimizer)(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp, own, pliant.Auto(quality=1.1, watch=False, probe_s=0.1), timeout_s=20) as run:
            switch, switched = run.switch, []
            run.switch = lambda *given, **how: (switched.append(given), switch(*given, **how))
            for step in range(60):
                x, y = batch(place.rank, step)
                own.zero_grad()
                loss_of(kind, ddp(x), y).backward()
                own.step()
            assert kind != "odd" or len(switched) == 1
            return run.tuner.explanation

    first, second = pliant.run_world(2, body)
    assert first == second
    assert asked == ([] if admitted is None else [admitted])
    assert ("Only exact plans and plans that were measured with it are considered" in first) == (optimizer == "AdamW")
    assert ("it could not see when backward begins" in first) == (kind == "odd")
