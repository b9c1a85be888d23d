""" "auto" tries plans while it trains, keeps the better one, says why, and leaves training as it should be."""

import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import pliant
from autotune.made_up_runs import few
from engine.kinds import KINDS, loss_of
from models import new_ddp, train, weights
from planner.examples import WORKLOAD
from pliant.autotune import measurements, monitor, plan_search, searches, trials, tuner
from pliant.network import rank_places
from pliant.planner import OWN_EXCHANGE, Gene
from pliant.profiling.observe import Observation
from pliant.spec import Host, Topology

__all__ = ["few"]

QUICK = {"max_trials": 4, "max_seconds": 20, "probe_s": 0.5}


def flown(place, auto, num_steps: int, before_step=lambda rank, step: None, until_chosen=False):
    """Train so many steps, or until the plan is chosen; return the run's plan, explanation, weights, losses."""
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = []
    with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
        for step in range(num_steps):
            before_step(place.rank, step)
            losses += train(ddp, optimizer, place.rank, [step % 2])
            if until_chosen and "auto is still" not in run.tuner.explanation:
                break
        return run.plan, run.tuner.explanation, weights(ddp), losses


@pytest.mark.parametrize("quality", [1.0, 1.3])
def test_all_ranks_choose_one_plan_and_say_why(quality, few):
    auto = pliant.Auto(quality=quality, watch=False, **QUICK)
    found = pliant.run_world(2, lambda place: flown(place, auto, 9000, until_chosen=True))
    plans, texts = {plan.hash for plan, *_ in found}, {text for _, text, *_ in found}
    assert len(plans) == len(texts) == 1
    text = texts.pop()
    assert "plans that were tried" in text
    assert "Keep the learning rate (tuned for 2 ranks' batches a step)" in text
    first, second = (w for _, _, w, _ in found)
    assert torch.isfinite(first).all()
    if not found[0][0].leaves_gradients:
        assert torch.equal(first, second)
    assert found[0][3][-1] < found[0][3][0]


def test_exact_auto_trains_like_ddp(few):
    auto = pliant.Auto(watch=False, **QUICK)

    def body(place):
        _, _, chosen, _ = flown(place, auto, 150)
        ddp = new_ddp(place)
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), place.rank, [step % 2 for step in range(150)])
        return chosen, weights(ddp)

    for chosen, plain in pliant.run_world(2, body):
        assert torch.allclose(chosen, plain, atol=0.05)  # 16 bits while they were tried


@pytest.mark.extended
def test_it_tries_again_when_steps_have_become_longer(monkeypatch, few):
    monkeypatch.setattr(tuner, "_HOLD_STEPS", 10)
    probes = []
    measured = measurements.probe
    monkeypatch.setattr(measurements, "probe", lambda comm, **kw: (probes.append(comm.rank), measured(comm, **kw))[1])
    auto = pliant.Auto(**{**QUICK, "max_trials": 2})
    mine = threading.local()
    for module in (monitor, searches, trials):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: mine.now_s))
    monkeypatch.setattr(Observation, "step_s", 0.01)  # which is of the same clock then

    def pass_time(rank, step):
        mine.now_s = getattr(mine, "now_s", 0.0) + (0.01 if step < 250 else 0.04)

    pliant.run_world(2, lambda place: flown(place, auto, 330, before_step=pass_time))
    assert sorted(probes) == [0, 0, 1, 1]


def test_what_auto_may_do_is_checked():
    with pytest.raises(ValueError, match="at least one plan"):
        pliant.Auto(max_trials=0)
    with pytest.raises(ValueError, match="cannot have -1 steps"):
        pliant.Auto(num_steps=-1)
    for wrong in ({"probe_s": math.nan}, {"probe_s": math.inf}, {"max_seconds": math.nan}):
        with pytest.raises(ValueError, match="a probe that ends"):
            pliant.Auto(**wrong)
    with pytest.raises(ValueError, match="least_gain is nan"):
        pliant.Auto(least_gain=math.nan)
    with pytest.raises(ValueError, match="tuned for -1 ranks"):
        pliant.Auto(tuned_for_ranks=-1)
    with pytest.raises(ValueError, match="fewer steps than exact"):
        pliant.Auto(quality=0.5)

    def body(place):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="an elastic run goes on"):
            pliant.relax(model, optimizer, "auto", group=place.process_group, elastic=pliant.Elastic())
        with pytest.raises(ValueError, match=r"rack='a' is given, but auto measures .* no uplinks of racks"):
            pliant.relax(model, optimizer, pliant.Auto(experience=None), group=place.process_group, rack="a")

    pliant.run_world(1, body)


def test_ranks_whose_links_no_probe_could_measure_are_refused_before_a_step(monkeypatch):
    mine = threading.local()
    monkeypatch.setattr(rank_places, "_network_of_this_process", lambda: mine.host)

    def body(place):
        mine.host = "ab"[place.rank % 2]
        ddp = new_ddp(place)
        with pytest.raises(ValueError, match="host by host"):
            pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), "auto", timeout_s=20, connections=1)
        return True

    assert all(pliant.run_world(3, body))


def test_links_are_measured_between_the_hosts_that_are_given():
    auto = pliant.Auto(watch=False, least_gain=1e6, experience=None)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pytest.raises(ValueError, match="host by host"):
            pliant.relax(ddp, optimizer, auto, hosts=[[0, 2], [1]], timeout_s=10)
        with pliant.relax(ddp, optimizer, auto, hosts=[[0, 1], [2]], timeout_s=10) as run:
            train(ddp, optimizer, place.rank, range(6))
            assert run.tuner.choice is not None
            return [host.num_ranks for host in run.tuner._measured.topology.hosts]

    assert pliant.run_world(3, body) == [[2, 1]] * 3


@pytest.mark.extended
def test_a_probe_is_short_where_exchanges_may_take_little(monkeypatch):
    asked, measured = [], measurements.probe
    monkeypatch.setattr(
        measurements, "probe", lambda comm, budget_s, **kw: asked.append(budget_s) or measured(comm, budget_s=0.1, **kw)
    )
    auto = pliant.Auto(watch=False, least_gain=1e6, probe_s=9.0, experience=None)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, auto, timeout_s=10) as run:
            train(ddp, optimizer, place.rank, range(6))
            return run.tuner.choice is not None

    assert all(pliant.run_world(2, body))
    assert asked == [4.0, 4.0]


@pytest.mark.parametrize("broadcasts", [True, False])
def test_advice_on_buffers_is_given_where_ddp_broadcasts_them(broadcasts):
    norms = [replace(t, layer=t.layer.replace("Layer", "Batch")) for t in WORKLOAD.tensors]
    work = replace(WORKLOAD, tensors=tuple(norms))
    links = Topology(hosts=tuple(Host(name=f"h{k}", delay_s=0.1) for k in range(2)))

    def body(place):
        ddp = new_ddp(place)
        ddp.broadcast_buffers = broadcasts
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.Auto(experience=None), timeout_s=20) as run:
            return "broadcast_buffers=False" in run.tuner._advise(work, links, 0.5)

    assert pliant.run_world(1, body) == [broadcasts]


def test_nothing_is_tried_where_nothing_is_predicted_to_pay(monkeypatch):
    tried = []
    monkeypatch.setattr(trials.TrialRunner, "time_plan", lambda *_: tried.append(1))
    auto = pliant.Auto(watch=False, least_gain=1e6, **QUICK)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, [step % 2 for step in range(12)])
            ahead = run.tuner.prospects
            return ahead and ahead.text, run.plan.hash, run.tuner.choice, run.tuner.explanation

    (ahead, plan, choice, text), *others = pliant.run_world(2, body)
    assert tried == []
    assert plan == OWN_EXCHANGE[False].plan("auto").hash
    assert (choice.adopted, choice.gains, choice.steps_ratio) == (False, (), 1.0)
    assert "none of the others is predicted to pay, so that none was tried" in text
    assert ahead.count("risk: ") >= 3  # the frontier, whatever the quality
    assert all(text == other for *_, other in others)


def test_advice_on_buffers_is_given_where_no_plan_was_tried(monkeypatch):
    """The step time is that of the first steps: nobody has measured another one."""
    far = Topology(hosts=tuple(Host(name=f"h{k}", delay_s=0.5) for k in range(2)))
    monkeypatch.setattr(measurements, "probe", lambda comm, **_: far)
    auto = pliant.Auto(watch=False, least_gain=1e9, experience=None, **QUICK)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, [step % 2 for step in range(12)])
            return run.tuner.choice.num_tried, run.tuner.explanation

    for num_tried, text in pliant.run_world(2, body):
        assert num_tried == 0
        assert "give DDP broadcast_buffers=False" in text


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "mixed" else pytest.mark.extended) for kind in KINDS]
)
def test_a_plan_is_chosen_for_parameters_of_every_kind(kind, monkeypatch):
    monkeypatch.setattr(tuner, "_ENOUGH_S", 0.0)
    auto = pliant.Auto(watch=False, experience=None, max_trials=1, max_seconds=5, probe_s=0.1)

    def body(place):
        ddp = new_ddp(place, model=KINDS[kind])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, auto, timeout_s=20) as run:
            for step in range(300):
                optimizer.zero_grad()
                loss_of(ddp, place.rank, step).backward()
                optimizer.step()
                if run.tuner.choice is not None:
                    break
            return run.tuner.choice is not None, run.tuner.prospects is not None

    assert pliant.run_world(2, body) == [(True, True), (True, False)]


@pytest.mark.parametrize("equal_weights", [True, False])
def test_plans_that_leave_ranks_apart_are_not_tried_where_weights_must_be_equal(equal_weights, monkeypatch):
    asked, space = [], plan_search.Space
    monkeypatch.setattr(plan_search, "Space", lambda *given: asked.append(given[2]) or space(*given))
    auto = pliant.Auto(quality=1.5, watch=False, equal_weights=equal_weights, least_gain=1e6, **QUICK)
    pliant.run_world(2, lambda place: flown(place, auto, 9000, until_chosen=True))
    assert [quality.admits(Gene("local", {"every": 2})) for quality in asked] == [not equal_weights]
    assert [quality.admits(Gene("fed_back", {"bits": 4})) for quality in asked] == [True]


@pytest.mark.parametrize("step_s", [1e-4, 0.1, 0.4, 60.0])
@pytest.mark.parametrize("num_steps", [10, 250, 100_000])
def test_a_search_takes_at_most_a_tenth_of_a_training_whose_length_is_known(num_steps, step_s):
    given, limited = pliant.Auto(), pliant.Auto(num_steps=num_steps).limited(step_s)
    assert pliant.Auto().limited(step_s) == given
    assert limited.max_seconds <= given.max_seconds
    assert limited.probe_s <= given.probe_s
    least_s = 0.3 + 2.0  # of what a search needs to say anything
    assert limited.probe_s + limited.max_seconds <= max(least_s, 0.1 * num_steps * step_s)


def test_a_change_near_the_end_of_a_training_is_not_answered():
    auto = pliant.Auto(num_steps=250)
    assert auto.may_search(0.4, 100)
    assert not auto.may_search(0.4, 200)
    assert not auto.may_search(0.4, 300)
    assert pliant.Auto().may_search(1e-9, 10**9)


def test_a_gain_below_one_is_refused():
    with pytest.raises(ValueError, match="a speed-up below 1 is a loss"):
        pliant.Auto(least_gain=0.9)
