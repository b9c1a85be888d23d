"""Replayed workloads, the order of trials, what is kept, and one small collection from start to data set."""

import json
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import typer
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import pliant
from pliant.network import RankResult
from pliant.planner import BASELINES, WORKLOADS, Quality, Space, scaled_down
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.spec import Host, TensorSpec, Topology, Workload
from pliant_bench.collect.collector import collect as run_job
from pliant_bench.collect.command import collect
from pliant_bench.collect.job import Job, WorkloadCell, entries_of, left_of
from pliant_bench.collect.journal import FILE, Journal, read_lines
from pliant_bench.collect.replay import Replay
from pliant_bench.collect.trial import is_precise
from pliant_bench.dataset import load
from pliant_bench.harness.setup import MARK, Cell
from processes.ranks import fork, said
from waiting import made_up_clock

READY_S = (0.0, 0.03, 0.06, 0.09)
SHAPES = ((10,), (20, 10), (5, 3, 2, 2), (400, 30))
NAMES = ("head.bias", "head.weight", "body.0.weight", "words.weight")
LAYERS = ("Linear", "Linear", "Conv2d", "Embedding")
SMALL = Workload(
    name="small",
    tensors=tuple(
        TensorSpec(name=name, shape=shape, dtype="float32", layer=layer, ready_s=ready_s)
        for name, shape, layer, ready_s in zip(NAMES, SHAPES, LAYERS, READY_S, strict=True)
    ),
    forward_s=0.03,
    backward_s=0.09,
)
FLAT = Topology(hosts=(Host(name="a"), Host(name="b")))
CELL = Cell(model="small", rate="none", delay="0ms")


def _collect(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(collect)
    return CliRunner().invoke(app, arguments)


def test_gradients_come_in_order_and_in_time(monkeypatch):
    clock = made_up_clock()
    monkeypatch.setattr("pliant_bench.collect.replay.time", clock)
    replay = Replay(SMALL)
    came_s = {}

    def note(name):
        def hook(_):
            came_s[name] = clock.now_s

        return hook

    for name, parameter in replay.named_parameters():
        parameter.register_post_accumulate_grad_hook(note(name))
    for slowdown in (1.0, 2.0, 0.0):
        came_s.clear()
        replay.slowdown = slowdown
        start_s = clock.now_s
        loss = replay()
        forward_s = clock.now_s - start_s
        loss.backward()
        assert forward_s == pytest.approx(slowdown * SMALL.forward_s)
        assert list(came_s) == list(NAMES)
        for name, ready_s in zip(NAMES, READY_S, strict=True):
            assert came_s[name] - came_s[NAMES[0]] == pytest.approx(slowdown * ready_s), (slowdown, name)


def test_layers_have_the_classes_and_names_that_rules_ask_for():
    replay = Replay(SMALL)
    owners = {name: type(replay.get_submodule(name.rpartition(".")[0])).__name__ for name in NAMES}
    assert owners == dict(zip(NAMES, LAYERS, strict=True))
    assert {name: tuple(p.shape) for name, p in replay.named_parameters()} == dict(zip(NAMES, SHAPES, strict=True))


def test_values_have_few_large_elements_and_differ_between_ranks_and_steps():
    replay, other = Replay(SMALL, rank=0), Replay(SMALL, rank=1)
    replay.slowdown = other.slowdown = 0.0
    replay(), other()
    one, theirs = replay.gradient(3), other.gradient(3)
    energy = one.square().flatten().sort(descending=True).values
    assert 0.25 < float(energy[: one.numel() // 100].sum() / energy.sum()) < 0.6
    assert 0.3 < float(torch.corrcoef(torch.stack([one.flatten(), theirs.flatten()]))[0, 1]) < 0.7
    assert torch.equal(one, replay.gradient(3))
    replay()
    assert not torch.equal(one, replay.gradient(3))


def test_ddp_averages_what_is_replayed():
    def be(place):
        replay = Replay(SMALL, rank=place.rank)
        replay.slowdown = 0.0
        ddp = DistributedDataParallel(replay, process_group=place.process_group, gradient_as_bucket_view=True)
        for _ in range(3):
            ddp.zero_grad()
            ddp().backward()
        own = [replay.gradient(k) for k in range(len(NAMES))]
        return own, {name: p.grad.clone() for name, p in replay.named_parameters()}

    (one, means), (other, _) = pliant.run_world(2, be)
    for k, name in enumerate(NAMES):
        torch.testing.assert_close(means[name], (one[k] + other[k]) / 2)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "weight"}, "has no owner; name it as in 'layer.weight'"),
        ({"name": "head.other", "layer": "LSTM"}, "'head' is a Linear by one of its tensors and a LSTM"),
        ({"dtype": "bfloat16"}, "only float32 is replayed"),
        ({"ready_s": 0.01}, "is ready before the tensor in front of it"),
        ({"name": "head.bias", "layer": "Linear"}, "two tensors of small have the same name"),
    ],
)
def test_workloads_that_cannot_be_replayed_are_refused(fields, sentence):
    odd = TensorSpec(**{"name": "x.y", "shape": (1,), "dtype": "float32", "layer": "X", "ready_s": 1.0, **fields})
    workload = Workload(name="small", tensors=(*SMALL.tensors, odd), forward_s=0.0, backward_s=1.0)
    with pytest.raises(ValueError, match=sentence):
        Replay(workload)


def test_the_order_of_trials_is_that_of_the_seed():
    workload, _ = scaled_down(WORKLOADS["bert"](), 1e6)
    entries = entries_of(CELL, workload, FLAT, 40, 3.5, 0)
    assert entries == entries_of(CELL, workload, FLAT, 40, 3.5, 0)
    assert entries != entries_of(CELL, workload, FLAT, 40, 3.5, 1)
    kinds = [entry.kind for entry in entries]
    assert [kinds.count(kind) for kind in ("plan", "repeat", "control")] == [40, 2, 6]
    assert kinds[0] == kinds[-1] == "control"
    controls = [k for k, kind in enumerate(kinds) if kind == "control"]
    assert max(b - a for a, b in pairwise(controls)) <= 11
    assert [entry.number for entry in entries] == list(range(48))
    names = {entry.name for entry in entries}
    assert names == {*BASELINES, "sample"} - {"by-hosts", "scheduled"}  # one rank a host, and all links alike
    with pytest.raises(ValueError, match="lower --plans or raise --budget"):
        entries_of(CELL, Workload(name="none", tensors=(), forward_s=0.0, backward_s=0.0), FLAT, 300, 1.0, 0)


def test_a_space_that_can_be_enumerated_is_run_whole():
    workload, _ = scaled_down(WORKLOADS["bert"](), 4e6)
    entries = entries_of(CELL, workload, FLAT, 0, 1.05, 0)
    run = {entry.genes for entry in entries}
    space = Space(workload, FLAT, Quality(budget=1.05, ratios=MEASURED_STEPS_RATIO))
    assert run >= set(space.enumerate())
    assert run - set(space.enumerate()) <= set(BASELINES.values())


def _job(num=3):
    entries = tuple(entries_of(CELL, SMALL, FLAT, num, 3.5, 0))
    place = WorkloadCell(cell=CELL, workload=SMALL, size_share=1.0, topology=FLAT, entries=entries)
    return Job(places=(place,), seconds_per_trial=1.0, timeout_s=9.0, seed=0, ranks_per_host=1, emulated=False)


def test_what_was_run_is_left_out_and_a_session_begins_with_a_control():
    job = _job()
    left = left_of(job, lambda cell, number: cell == CELL and number < 2)
    numbers = [(entry.number, entry.kind) for entry in left.places[0].entries]
    assert numbers == [(-2, "control"), (2, "plan"), (3, "plan"), (4, "control")]
    assert left_of(job, lambda cell, number: True).places == ()


FOUND = {"samples": [[0.1, 0.1, 0.1]], "num_steps": 1, "period": 1, "took_s": 1.0, "status": "ok", "reason": ""}


class _Ranks:
    """Makes a trial of everything, but dies at some."""

    def __init__(self, *deadly):
        self.deadly, self.lives = set(deadly), []

    def run(self, argv, *, on_line):
        job = pliant.load(Job, argv[-1])
        self.lives.append([entry.number for entry in job.places[0].entries])

        def say(kind, **fields):
            on_line(0, MARK + json.dumps({"kind": kind, "place": 0, **fields}))

        say("session", compute_s=0.1)
        for entry in job.places[0].entries:
            say("begin", number=entry.number)
            if entry.number in self.deadly:
                on_line(1, "Timeout (0:00:09)!")
                return [RankResult(rank=r, host="a", exit_code=1, ended_by_us=r == 0) for r in (0, 1)]
            say("trial", number=entry.number, **FOUND)
        return [RankResult(rank=r, host="a", exit_code=0, ended_by_us=False) for r in (0, 1)]


def test_a_plan_that_hangs_is_a_failure_and_the_others_go_on(tmp_path):
    job, ranks, notes = _job(), _Ranks(2), []
    journal = Journal(tmp_path, {"plans": 3})
    run_job(job, ranks, journal, {}, notes.append)
    assert ranks.lives == [[0, 1, 2, 3, 4], [-3, 3, 4]]
    trials = [line for line in read_lines(tmp_path / FILE) if line["kind"] == "trial"]
    assert [(t["number"], t["status"]) for t in trials] == [
        (0, "ok"), (1, "ok"), (2, "failed"), (-3, "ok"), (3, "ok"), (4, "ok")
    ]  # fmt: skip
    assert trials[2]["reason"] == "rank 1: no end within 9 s"
    assert trials[2]["session_id"] != trials[3]["session_id"]
    assert any("starting the ranks again" in text for text in notes)
    run_job(job, ranks, Journal(tmp_path, {"plans": 3}), {}, notes.append)
    assert len(ranks.lives) == 2  # nothing was left
    with pytest.raises(RuntimeError, match=r"rank 1 failed with exit code 1:\nTimeout"):
        run_job(job, _Ranks(0), Journal(tmp_path / "other", {}), {}, notes.append)


def test_a_line_that_was_cut_off_is_forgotten_and_other_settings_are_refused(tmp_path):
    journal = Journal(tmp_path, {"plans": 3, "models": ["a"]})
    journal.write({"kind": "note"})
    with (tmp_path / FILE).open("a") as file:
        file.write('{"kind": "tri')
    Journal(tmp_path, {"plans": 3, "models": ["a", "b"]})
    assert [line["kind"] for line in read_lines(tmp_path / FILE)] == ["job", "note", "job"]
    with pytest.raises(ValueError, match="give another --out folder, or the same settings"):
        Journal(tmp_path, {"plans": 4})
    with pytest.raises(ValueError, match="run pliant collect --out"):
        read_lines(tmp_path / "no" / FILE)


def test_samples_are_precise_when_they_agree():
    assert not is_precise([1.0] * 5)
    assert is_precise([1.0] * 6)
    assert not is_precise([1.0, 1.2] * 5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--local"], "ranks of --local have no links that could be made 100mbit"),
        (["--models", "alexnet"], "there is no model 'alexnet'"),
        (["--models", ","], "there are no cells"),
        (["--hosts", "1"], "a single rank exchanges nothing"),
        (["--slow-host", "1"], "--slow-host is 1.0"),
        (["--plans", "-1"], "--plans is -1"),
        (["--timeout", "3s"], "give a longer timeout"),
        (["--out", "b"], "trials are written to one folder"),
        (["--micro", "c.json"], "are for --export"),
        (["--export", "d"], "run pliant collect --out a first"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in str(_collect("--out", "a", *arguments).exception)


RANK = """
import dataclasses, os, sys, time, torch.distributed as dist
from pathlib import Path
from datetime import timedelta
from test_collect import _job
from pliant_bench.collect.trial import ReplayedModel, run_trial
from pliant_bench.collect.worker import _ends_within
from pliant.planner import BASELINES
from pliant.spec import Custom, Rule, SyncPlan

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
job = dataclasses.replace(_job(), timeout_s=6.0)
subject = ReplayedModel(job.places[0], job)
good = BASELINES["bytegrad"].plan()
bad = SyncPlan(rules=(Rule(exchange=Custom(name="none")),))
print("all:", run_trial(subject, bad, 0.2, wire=False), flush=True)
subject.abandon()
subject = ReplayedModel(job.places[0], job)
make, made = subject.step, []
def step():
    made.append(0)
    if len(made) == 3 and dist.get_rank() == 1:
        raise MemoryError("no more")
    make()
subject.step = step
print("one:", run_trial(subject, good, 0.2, wire=False), flush=True)
subject.abandon()
subject = ReplayedModel(job.places[0], job)
found = run_trial(subject, good, 0.2, wire=False)
print("then:", found["status"], found["sent_bytes"] > 0, len(found["samples"]) > 0, flush=True)
subject.run.close()
with _ends_within(0.5):
    time.sleep(30)
"""


@pytest.mark.extended
@pytest.mark.processes
def test_what_raises_is_a_result_and_what_hangs_is_ended(tmp_path, monkeypatch):
    ranks = fork(RANK, 2, tmp_path)
    for process in ranks:
        assert process.wait(60) == 1
    for rank in range(2):
        text = said(tmp_path, rank)
        assert "all: {'status': 'failed', 'reason': 'rank 0: ValueError: the set of known algorithms" in text, text
        assert "one: {'status': 'failed', 'reason': 'rank 1: MemoryError: no more'}" in text, text
        assert "then: ok True True" in text, text
        assert "Timeout (0:00:00.5" in text, text


@pytest.mark.processes
@pytest.mark.extended
def test_a_collection_goes_on_after_an_interruption_and_becomes_a_data_set(tmp_path):
    out, data = tmp_path / "out", tmp_path / "data"
    command = [sys.executable, "-m", "pliant.cli.main", "collect", "--out", str(out), "--local", "--hosts", "2"]
    command += ["--models", "cnn", "--rates", "none", "--delays", "0ms", "--plans", "4", "--size", "200KB"]
    command += ["--seconds-per-trial", "0.2"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if ": 1 plan" in line:
            break
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=250)
    assert first.returncode == 128 + signal.SIGTERM
    again = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert ": 0 control" not in again.stdout
    done = _collect("--out", str(out), "--export", str(data))
    assert done.exit_code == 0, done.output
    found = load(data)
    runs = found.runs
    assert sorted(set(runs["number"][runs["number"] >= 0])) == list(range(6))
    assert len(found.rows("sessions")) == 2
    assert set(runs["status"]) == {"ok"}
    assert set(runs["provenance"]) == {"measured_loopback"}
    (model,) = found.models.values()
    assert 4 * model.workload.numel <= 200_000
    assert model.size_share < 1
    later = runs["session_id"] == found.rows("sessions")[1]["session_id"]
    assert runs["kind"][later][0] == "control"
    assert all(runs["step_s"] > 0.9 * (model.workload.forward_s + model.workload.backward_s))
    trials = found.trials(runs["model_id"][0], runs["topo_id"][0], "measured_loopback")
    assert len(trials) == len(runs["run_id"])
    assert all(trial.step_s == step_s for trial, step_s in zip(trials, runs["step_s"], strict=True))
    assert (data / "card.md").read_text().startswith("# Plans and their step times")
