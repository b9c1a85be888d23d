"""A second `pliant run` on a known cluster begins with the plan of the first; what does not hold leads to plain steps.

Scripts are loops of threads. Their steps pass on a clock that is made up, on which each plan takes what the simulator
says of a slow network.
"""

import json
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import pliant
from autotune.made_up_runs import TRUTH, WORKLOAD
from models import new_ddp, train
from pliant.attachment import choices
from pliant.attachment.course import Course
from pliant.attachment.verdict import RunOptions, RunVerdict
from pliant.autotune import measurements, plan_search, prospects, recall, searches, trials, turn_budget
from pliant.autotune.summary import Choice
from pliant.netmodel import PRESETS
from pliant.planner import OWN_EXCHANGE, challenge
from pliant.planner.experience import load_experience
from pliant.profiling.observe import Observation
from pliant.simulator import simulate
from pliant.spec import Host, SyncPlan, Topology, from_json, save

SLOW = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1.25e7, receive_bytes_per_s=1.25e7) for k in range(2)))
PLAIN_S = simulate(OWN_EXCHANGE[False].plan(), WORKLOAD, SLOW, overheads=TRUTH).step_s


class MadeUp:
    """What all ranks of a run share: their clocks, and what was counted on the first rank."""

    def __init__(self, monkeypatch):
        self.mine = threading.local()
        self.asked, self.observed, self.probes = [], 0, 0
        self.kind, self.steps_before = torch.optim.SGD, 0
        self.slower = 1.0
        """Times that every plan takes on the network of the moment."""
        monkeypatch.setattr("pliant.comm.ballot.store_of", lambda _: self.store)  # threads have found each other
        for module in (trials, searches):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.mine.now_s))
        monkeypatch.setattr(searches, "_SAMPLES", 12)
        monkeypatch.setattr(prospects, "_CANDIDATES", 2)
        monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])
        monkeypatch.setattr(measurements, "probe", self.probe)
        monkeypatch.setattr(Observation, "step_s", property(lambda _: PLAIN_S * self.slower))
        monkeypatch.setattr(Observation, "workload", lambda *_, **__: self.observe())
        timed, started = plan_search.TrialRunner.time_plan, choices.start_run
        monkeypatch.setattr(
            plan_search.TrialRunner, "time_plan", lambda *given, **more: self.count(timed, *given, **more)
        )
        monkeypatch.setattr(choices, "start_run", lambda *given, **named: self.keep(started(*given, **named)))

    def first(self):
        return self.mine.rank == 0

    def probe(self, comm, **_):
        self.probes += self.first()
        return SLOW

    def observe(self):
        self.observed += self.first()
        return WORKLOAD

    def count(self, timed, *given, **more):
        self.asked += [given[1].hash] if self.first() else []
        return timed(*given, **more)

    def keep(self, run):
        self.mine.run = run
        return run

    def step_s(self):
        run = self.mine.run
        simulated = PLAIN_S if run is None else simulate(run.plan, WORKLOAD, SLOW, overheads=TRUTH).step_s
        return simulated * self.slower

    def script(self, place, folder, options):
        """Train as a script does, until the verdict is there; return it, and the steps that this took."""
        self.mine.now_s, self.mine.run, self.mine.rank = 0.0, None, place.rank
        ddp = new_ddp(place)
        optimizer = self.kind(ddp.parameters(), lr=0.01)
        train(ddp, optimizer, place.rank, [0])
        for state in optimizer.state.values():
            state["step"] += self.steps_before
        course = Course([ddp], [optimizer], options, folder)
        steps = course.steps()
        next(steps)
        verdict, num_steps = course._verdict, 0
        while not (verdict.decided or verdict.reason) and num_steps < 400:
            train(ddp, optimizer, place.rank, [num_steps % 2])
            self.mine.now_s += self.step_s()
            num_steps += 1
            next(steps)
        plan = "" if course._choice is None else course._choice.run.plan.hash
        steps.close()
        if course._choice is not None:
            course._choice.close()
        return verdict, plan, num_steps


@pytest.fixture
def made_up(monkeypatch):
    return MadeUp(monkeypatch)


def run(made_up, tmp_path, **options):
    """Run the script on two ranks; return its verdict, plan and steps, and what was counted meanwhile."""
    made_up.store = dist.HashStore()
    made_up.asked, made_up.observed, made_up.probes = [], 0, 0
    options = RunOptions(**{"experience": str(tmp_path / "known"), **options})
    tmp_path.joinpath("run").mkdir(exist_ok=True)
    found = pliant.run_world(2, lambda place: made_up.script(place, tmp_path / "run", options))
    (verdict, plan, num_steps), (_, other, same) = found
    assert (plan, num_steps) == (other, same)
    return verdict, plan, num_steps, (len(made_up.asked), made_up.observed, made_up.probes)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """Return the folder that a first run has left, and what `run` says of it."""
    folder = tmp_path_factory.mktemp("first")
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(turn_budget, "SHARE", 100.0)  # so that plans take turns at once
        patch.setattr(challenge, "_TIE", 1.5)  # and several are tried
        return folder, run(MadeUp(patch), folder)


@pytest.fixture
def known(first_run, tmp_path):
    """Put what the first run has left where the run of a test looks; return what `run` says of the first."""
    folder, said = first_run
    shutil.copytree(folder / "known", tmp_path / "known")
    return said


def cost_s(verdict):
    plan = from_json(SyncPlan, json.dumps(verdict.plan))
    return simulate(plan, WORKLOAD, SLOW, overheads=TRUTH).step_s * verdict.steps_ratio


def left_by(tmp_path):
    (path,) = tmp_path.joinpath("known").iterdir()
    return path, load_experience(path)


def test_a_second_run_takes_the_plan_of_the_first_with_few_trials_and_no_plain_steps(made_up, tmp_path, known):
    first, plan, steps, (trials_made, observed, probes) = known
    assert first.plan is not None
    assert (observed, probes) == (1, 1)
    assert trials_made > 3
    assert not first.remembered
    second, _, fewer, counted = run(made_up, tmp_path)
    assert made_up.asked[0] == plan
    assert cost_s(second) <= cost_s(first)  # of the plan of the first, or of one that it had not tried
    assert counted[0] <= 3
    assert counted[1:] == (0, 0)
    assert fewer < steps
    assert second.remembered
    assert second.baseline_step_s == pytest.approx(PLAIN_S)
    assert "DDP alone: in an earlier run a step took" in second.text()
    assert "Experience from" in second.text()
    assert run(made_up, tmp_path)[3][1:] == (0, 0)  # the second has left as much as the first


@pytest.mark.parametrize(
    ("slower", "holds"), [(1.2, True), (1.4, False), pytest.param(0.7, False, marks=pytest.mark.extended)]
)
def test_a_known_plan_that_takes_another_time_leads_to_plain_steps_and_a_probe(made_up, tmp_path, known, slower, holds):
    made_up.slower = slower
    verdict, _, _, (_, observed, probes) = run(made_up, tmp_path)
    assert (observed, probes) == ((0, 0) if holds else (1, 1))
    assert verdict.remembered == holds
    assert ("all was measured anew" in verdict.explanation) != holds
    assert verdict.baseline_step_s == pytest.approx(PLAIN_S * (1 if holds else slower))
    assert run(made_up, tmp_path)[3][1:] == (0, 0)  # by now it is known


def test_a_script_that_goes_on_from_a_checkpoint_has_as_long_to_choose_as_a_new_one(made_up, tmp_path):
    made_up.kind, made_up.steps_before = torch.optim.Adam, 5000
    verdict, _, _, (trials_made, observed, _) = run(made_up, tmp_path)
    assert observed == 1
    assert trials_made
    assert verdict.plan is not None


@pytest.mark.parametrize(("gain", "kept"), [(1.04, False), (1.06, True)])
def test_a_plan_that_was_measured_to_be_hardly_faster_is_not_kept(gain, kept):
    own = OWN_EXCHANGE[False].plan()
    choice = object.__new__(choices.PlanChoice)
    found = Choice(plan=own, steps_ratio=1.0, gains=(gain, gain), adopted=True, num_tried=3)
    choice._tuner = SimpleNamespace(choice=found, prospects=None)
    chosen = choice.chosen()
    assert (chosen.plan is own) == kept
    assert ("1.04 times as fast" in chosen.why) != kept


def _of_more_ranks(found):
    return replace(found, setup=replace(found.setup, ranks=(4,)))


def _of_another_shape(found):
    return replace(found, setup=replace(found.setup, shapes=((3, 3), *found.setup.shapes[1:])))


def _stale(found):
    return replace(found, setup=replace(found.setup, release="0.0.1"))


REFUSED = {
    "damaged": lambda path, found: path.write_text(path.read_text()[:-40]),
    "of another world": lambda path, found: save(_of_more_ranks(found), path),
    "of another model": lambda path, found: save(_of_another_shape(found), path),
    "stale": lambda path, found: save(_stale(found), path),
    "without the time of the plan": lambda path, found: save(replace(found, kept_s=0.0), path),
    "without the time of DDP": lambda path, found: save(
        replace(found, trials=found.trials[1:], predicted_s=found.predicted_s[1:], ratios=found.ratios[1:]), path
    ),
}


OF_A_KIND = {"of another model", "stale", "without the time of the plan"}
"""Cases that others are much like."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.extended] if case in OF_A_KIND else []) for case in REFUSED]
)
def test_what_is_not_of_this_run_is_no_known_plan(made_up, tmp_path, known, case):
    _, plan, _, _ = known
    REFUSED[case](*left_by(tmp_path))
    verdict, again, _, (_, observed, probes) = run(made_up, tmp_path)
    assert (observed, probes) == (1, 1)
    assert again == plan
    assert not verdict.remembered
    assert sum(
        line.startswith(("Experience", "The experience", "Its plan")) for line in verdict.explanation.splitlines()
    )


def test_a_place_that_cannot_be_written_is_read_all_the_same_and_said_once(made_up, tmp_path, known, monkeypatch):
    _, plan, _, _ = known

    def refuse(*_):
        raise OSError("a read-only place")

    monkeypatch.setattr("pliant.autotune.experience_store.save", refuse)
    verdict, _, _, counted = run(made_up, tmp_path)
    assert made_up.asked[0] == plan
    assert counted[1:] == (0, 0)
    assert verdict.explanation.count("a read-only place") == 1


def test_ranks_with_other_parameters_use_no_experience(made_up, tmp_path, known, monkeypatch, caplog):
    asked = recall.setup_of

    def uneven(*given):
        return replace(asked(*given), optimizer=f"of rank {made_up.mine.rank}")

    monkeypatch.setattr(recall, "setup_of", uneven)
    _, _, _, counted = run(made_up, tmp_path)
    assert counted[1:] == (1, 1)
    assert sum("no experience is used" in each.message for each in caplog.records) == 1


def test_a_run_without_experience_knows_nothing(made_up, tmp_path, known):
    assert run(made_up, tmp_path, experience="none")[3][1:] == (1, 1)


@pytest.fixture
def alone(made_up, tmp_path, monkeypatch):
    """A course of one rank, whose reason is known at once, and a clock that is set by hand."""
    made_up.store, clock = dist.HashStore(), SimpleNamespace(now_s=0.0)
    monkeypatch.setattr("pliant.attachment.course.time", SimpleNamespace(perf_counter=lambda: clock.now_s))

    def begin(place):
        ddp = new_ddp(place)
        return Course([ddp], [torch.optim.SGD(ddp.parameters(), lr=0.01)], RunOptions(), tmp_path)

    return begin, clock


def test_a_step_time_is_of_the_last_steps_and_costs_no_more_the_longer_a_script_trains(alone, monkeypatch):
    begin, clock = alone
    monkeypatch.setattr("pliant.attachment.course._REMEMBERED", 8)

    def body(place):
        course = begin(place)
        steps, verdict = course.steps(), course._verdict
        next(steps)
        verdict.decided = True
        for k in range(60):
            clock.now_s += 5.0 if k < 40 else 2.0
            next(steps)
        return verdict.step_s, verdict.num_steps, len(course._ends_s)

    assert pliant.run_world(1, body) == [(2.0, 60, 9)]


def test_a_verdict_that_cannot_be_written_does_not_end_the_script(alone, monkeypatch):
    begin, clock = alone
    refused = []

    def refuse(*_):
        refused.append(clock.now_s)
        raise OSError("no space left")

    monkeypatch.setattr(RunVerdict, "save", refuse)

    def body(place):
        steps = begin(place).steps()
        for _ in range(3):
            next(steps)
            clock.now_s += 2.0

    pliant.run_world(1, body)
    assert len(refused) == 3
