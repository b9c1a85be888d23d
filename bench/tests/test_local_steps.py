"""The job on local steps: its list, its journal, the tuning of rates and the numbers of its page."""

import importlib
import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from test_language_lab import RANKS, RATE, STEPS, folder, recipe, task

import pliant
from pliant.planner import Gene
from pliant.planner.steps_ratios import read_ratios
from pliant_bench.lab.training import Outcome, train

__all__ = ["folder"]
MODULES = ("trials", "rates", "measure", "page", "ratios")


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/local_steps, which has names in common with other folders."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "local_steps"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def trial(load, kind, arm, **other):
    made = load("trials").record(kind, arm, load("trials").Cell(size="0.06M"), other.pop("seed", 0))
    return {**made, **other}


BEST = 2.0**-5
"""Rate at which losses of `NoProcesses` are lowest."""


def by_rate(task, what, recipe):
    """Return the curve of a training whose loss depends on its rate, its seed and a word of its algorithm."""
    loss = 1 + abs(math.log2(recipe.lr / BEST)) / 10 + recipe.seed / 100 + (0.5 if "local" in what else 0)
    return [{"step": task["steps"], "loss": loss}]


class NoProcesses:
    """Ranks whose trainings take no time, and which trainings were asked of them."""

    asked: ClassVar[list] = []
    curve = staticmethod(by_rate)

    def __init__(self, device):
        self.device = device

    def train(self, task, what, recipe):
        self.asked.append((task["size"], recipe.ranks, self.device, task["folder"]))
        curve = self.curve(task, what, recipe)
        return Outcome(curve=curve, diverged=False, sent_bytes=8e6, exchanges=31, wall_s=0.0, weights=[])

    def close(self):
        self.asked.append("closed")


def run_job(load, monkeypatch, folder, out, trials, *arguments):
    job = load("measure")
    monkeypatch.setattr(job, "read", lambda path: trials)
    monkeypatch.setattr(job, "RankProcesses", NoProcesses)
    job.main(["--out", str(out), "--text", folder, *arguments])
    return lines_of(out)


def lines_of(out):
    """Return the whole lines of a file."""
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")] if out.exists() else []


def test_the_list_of_trials_is_what_its_command_makes(load):
    trials = load("trials")
    for path, listed in (
        (trials.LIST, trials.listed()),
        (trials.MUON_LIST, trials.listed_of_muon()),
        (trials.LOCAL_MUON_LIST, trials.listed_of_local_muon()),
    ):
        assert trials.read(path) == json.loads(json.dumps(listed))
        keys = [trials.key_of(each) for each in listed]
        assert len(set(keys)) == len(keys)
    later = {"des_loc", "mt_dao", "pier", "acco", "delayed_nesterov"}
    for text in {each["algorithm"] for each in trials.read()}:
        known = text.replace("{steps}", "1000")
        assert text.split("(")[0] in later or "total_steps" in text or pliant.parse(known)
    assert {each["device"] for each in trials.read() if each["size"] == "125M"} == {"cuda"}


@pytest.mark.extended
def test_what_muon_needs_is_tried_with_optimizers_that_there_are(load, folder):
    trials = load("trials")
    local = {(each["algorithm"], each["optimizer"]) for each in trials.listed_of_local_muon()}
    every_step = {(each["algorithm"], each["optimizer"]) for each in trials.listed_of_muon()}
    for algorithm, optimizer in local | every_step:
        outcome = train(task(folder), algorithm, recipe(optimizer=optimizer))
        assert not outcome.diverged, algorithm
        if (algorithm, optimizer) in every_step:  # others' periods may be longer than the training
            assert outcome.sent_bytes > 0


def test_a_rate_is_tuned_short_and_checked_long(load, monkeypatch, folder, tmp_path, capsys):
    arm = load("trials").ADAMW_DDP
    trials = [trial(load, kind, arm) for kind in ("tuned", "checked")] + [trial(load, "trained", arm, seed=2)]
    lines = run_job(load, monkeypatch, folder, tmp_path / "out", trials)
    rates = {steps: [line["lr"] for line in lines if line["steps"] == steps] for steps in (500, 1000)}
    assert sorted(rates[500]) == [2.0**-8, 2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4]
    assert sorted(set(rates[1000])) == [2.0**-6, 2.0**-5, 2.0**-4]
    assert [line["lr"] for line in lines if line["seed"] == 2] == [BEST]
    assert "trained/AdamW/ddp/0.06M/32/4/1000/linear/2: rate 0.03125, loss 1.0200" in capsys.readouterr().out


def test_the_job_goes_on_where_it_stopped(load, monkeypatch, folder, tmp_path, capsys):
    trials, out = [trial(load, kind, load("trials").ADAMW_DDP) for kind in ("tuned", "checked")], tmp_path / "out"
    whole = run_job(load, monkeypatch, folder, out, trials)
    out.write_text("".join(json.dumps(line) + "\n" for line in whole[:3]) + '{"size": "0.06M", "wind')
    clock = itertools.count()
    monkeypatch.setattr(load("measure").time, "monotonic", lambda: next(clock))
    run_job(load, monkeypatch, folder, out, trials, "--seconds", "2")
    told = capsys.readouterr().out
    assert "the time is over; 2 trials are left" in told
    assert "1 trainings were made" in told
    run_job(load, monkeypatch, folder, out, trials, "--list")
    assert "2 of 2 trials are open" in capsys.readouterr().out
    assert run_job(load, monkeypatch, folder, out, trials) == whole
    written = out.read_text()
    run_job(load, monkeypatch, folder, out, trials)
    assert out.read_text() == written
    with pytest.raises(SystemExit):
        run_job(load, monkeypatch, "", out, trials)
    assert f"the file has trainings on {folder}, not on library of Python 3" in capsys.readouterr().err


def test_what_pliant_does_not_have_is_one_line_and_tried_again(load, monkeypatch, folder, tmp_path, capsys):
    arms = load("trials").Arm
    unknown = trial(load, "tuned", arms(name="lion_loco", algorithm="lion_loco(period=32)"))
    lion = trial(load, "tuned", arms(name="ddp", algorithm="bf16", optimizer="Lion"))
    lines = run_job(load, monkeypatch, folder, tmp_path / "out", [unknown, lion])
    assert lines == []
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" refused: ")[2][:30] for line in told[:2]] == [
        "there is no algorithm 'lion_lo",
        "there is no optimizer 'Lion' i",
    ]
    run_job(load, monkeypatch, folder, tmp_path / "out", [unknown], "--list")
    assert "open tuned/AdamW/lion_loco" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_job(load, monkeypatch, folder, tmp_path / "out", [{**unknown, "device": "cuda"}])
    assert "no trial for cpu is called *" in capsys.readouterr().err


def test_an_accelerator_carries_out_all_trials_with_processes(load, monkeypatch, folder, tmp_path):
    """Those of the CPU too, with as many ranks as they say, all on the one device."""
    asked = []
    monkeypatch.setattr(NoProcesses, "asked", asked)
    arm = load("trials").ADAMW_DDP
    trials = [trial(load, "tuned", arm), trial(load, "tuned", arm, size="125M", device="cuda", windows=128)]
    lines = run_job(load, monkeypatch, folder, tmp_path / "out", trials, "--device", "cuda")
    assert {line["device"] for line in lines} == {"cuda"}
    assert set(asked[:-1]) == {("0.06M", 4, "cuda", folder), ("125M", 4, "cuda", folder)}
    assert asked[-1] == "closed"


def test_a_training_of_the_job_is_one_of_the_laboratory(load, folder, tmp_path):
    job, rates = load("measure"), load("rates")
    about = {"size": "0.06M", "windows": 4, "ranks": RANKS, "steps": STEPS, "optimizer": "Muon", "decay": "cosine"}
    about |= {"algorithm": "local_sgd(period=2)", "lr": RATE, "seed": 1}
    bench = job.Bench(rates.Trainings(tmp_path / "out"), "cpu", folder, math.inf)
    line = bench.trained(about)
    bench.close()
    ours = train(task(folder), "local_sgd(period=2)", recipe(optimizer="Muon", seed=1, every=1, decay="cosine"))
    assert line["curve"] == [(point["step"], round(point["loss"], 6)) for point in ours.curve]
    assert line["exchanges"] == STEPS // 2


def test_a_borrowed_rate_is_that_of_muloco(load, monkeypatch, folder, tmp_path):
    trials = load("trials")
    arm = trials.OF_LOCAL_MUON[0]
    lines = run_job(load, monkeypatch, folder, tmp_path / "out", [trials.record("borrowed", arm, trials.BASE, seed=1)])
    assert {line["algorithm"] for line in lines} == {trials.MULOCO.algorithm, arm.algorithm}
    assert [(line["lr"], line["seed"]) for line in lines if line["algorithm"] == arm.algorithm] == [(BEST, 1)]


def test_the_page_has_ratios_of_the_same_seeds(load, monkeypatch, folder, tmp_path, capsys):
    trials = load("trials")
    arms = (trials.ADAMW_DDP, trials.EVERY_STEP)
    listed = [*trials.in_cell(arms, trials.BASE, (0, 1)), trials.record("scaled", arms[1], trials.BASE, times=2.0)]
    out = tmp_path / "out"
    run_job(load, monkeypatch, folder, out, listed)
    monkeypatch.setattr(load("page"), "read", lambda path: [*listed, *trials.in_cell(trials.MAIN, trials.BASE, (0,))])
    capsys.readouterr()
    load("page").main([str(out)])
    told = capsys.readouterr().out
    mean = (math.exp(1) + math.exp(1.01)) / 2
    ratio = math.exp(0.5)
    assert f"| ddp | AdamW | 0.0312 | {mean:.3f} | 1.000 (1.000 .. 1.000) |  | 2 | 31 |" in told
    both = f"{ratio:.3f} ({ratio:.3f} .. {ratio:.3f})"
    assert f"| local_sgd H1 | AdamW | 0.0312 | {mean * ratio:.3f} | {both} |  | 2 | 31 |" in told
    assert f"| local_sgd H1, 2 x DDP's rate | AdamW | 0.0625 | {math.exp(1.6):.3f} | {math.exp(0.6):.3f} |" in told
    assert f"| c: own v at DDP's best rate times the root of the ranks | {math.exp(0.6):.3f} |" in told
    assert "muloco" not in told


def lagging(task, what, recipe):
    """Return the curve of a training that comes to each loss so many times later than another."""
    lags = {"muloco": 1.1, "local_sgd": 1.3, "des_loc": 1.2}
    lag = next((lag for name, lag in lags.items() if what.startswith(name)), 1.0)
    worse = abs(math.log2(recipe.lr / BEST)) / 10
    points = range(recipe.every, task["steps"] + 1, recipe.every)
    return [{"step": step, "loss": 3 + worse - step / task["steps"] / lag} for step in points]


def fitted(lines):
    """Return the rows of the planner's table that `benchmarks/quality/fit.py` makes of lines."""
    path = Path(__file__).parents[2] / "benchmarks" / "quality" / "fit.py"
    spec = importlib.util.spec_from_file_location("fit_of_ratios", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rows(lines, module.TASKS, module.SEEDS)


def test_trainings_become_rows_of_the_planners_table(load, monkeypatch, folder, tmp_path, capsys):
    """Each at its own best rate, of three seeds, over all-reduce with the same optimizer; without it there is none."""
    trials, job, out = load("trials"), load("measure"), tmp_path / "out"
    late, acco = trials.Arm(name="late", algorithm="delayed"), next(arm for arm in trials.OTHERS if arm.loop_steps > 1)
    arms = (*trials.BASELINES, *trials.MAIN[:3], trials.MAIN[4], trials.LOCAL_MOMENTUM, late, acco)
    cell = trials.Cell(size="0.06M")
    listed = [*trials.in_cell(arms, cell), *trials.in_cell((trials.MAIN[3],), cell, (0, 1))]
    monkeypatch.setattr(job, "read", lambda path: listed)
    monkeypatch.setattr(job, "RankProcesses", NoProcesses)
    monkeypatch.setattr(NoProcesses, "curve", staticmethod(lagging))
    job.main(["--out", str(out), "--text", folder])
    monkeypatch.setattr(load("ratios"), "read", lambda path: listed)
    capsys.readouterr()
    load("ratios").main([str(out)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["family"] for line in lines} == {"muloco", "local", "des_loc", "local_momentum"}
    found = {(row["family"], row["optimizer"]): row for row in fitted(lines)}
    size = {"ranks": 4, "parameters": 60_000, "steps": 1000, "limit": 1.25, "tasks": 1}
    wanted = {("muloco", "Muon"): 1.1, ("local_momentum", "Muon"): 1.2, ("local", "AdamW"): None}
    assert found.keys() == wanted.keys()  # of des_loc there are two seeds
    for key, ratio in wanted.items():
        assert found[key].items() >= {**size, "ratio": ratio, "highest": ratio}.items()
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"rows": list(found.values())}))
    [row] = read_ratios(path)["Muon"][Gene("muloco", found["muloco", "Muon"]["settings"])]
    assert row.sentence == "1.10 times the steps, measured with 0.06 M parameters on 4 ranks in 1,000 steps"
    [row] = read_ratios(path)["AdamW"][Gene("local", {"every": 32})]
    assert row.sentence.startswith("the loss not reached in 1.25 times the steps, measured with")
