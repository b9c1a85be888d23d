"""The laboratory of quality: its trainings are those of real ranks, and its ratios and lists are what they say."""

import copy
import importlib
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pliant
from pliant.spec import SyncPlan
from pliant_bench.lab import training
from pliant_bench.lab.models import CharLstm, ClickMlp
from pliant_bench.lab.ratios import step_reaching, target_of, tuned_rate
from pliant_bench.lab.tasks import LabTask, load_task
from pliant_bench.lab.training import Recipe, rate_factor, train
from processes import ranks

ALGORITHMS = ("onebit", "powersgd", "local_sgd(period=4)", "diloco(period=4)", "gossip", "choco")
CASES = tuple(itertools.product(ALGORITHMS, ("SGD", "AdamW")))
FEW = [case for k, case in enumerate(CASES) if k % 4 in (0, 3)]
"""Every algorithm with one of the optimizers."""
RANKS, STEPS = 2, 10

_RANK = """
import os, torch, test_lab
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
found = [test_lab.trained_alone(case, test_lab.first_model(), rank, None) for case in test_lab.CASES]
torch.save(found, os.path.join(os.environ["FOLDER"], f"{rank}.pt"))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def first_model():
    torch.manual_seed(3)
    return toy().model()


def trained_alone(case, first, rank, group):
    """Train one rank without the laboratory; return its state of the model at the end."""
    task, (algorithm, optimizer_name) = toy(), case
    model = copy.deepcopy(first)
    if optimizer_name == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with pliant.relax(model, optimizer, algorithm, group=group) as run:
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - 0.1 * max(step - 1, 0))
            x, y = task.batch_of(step, rank, RANKS, 3)
            optimizer.zero_grad()
            cross_entropy(run.model(x), y).backward()
            optimizer.step()
        run.state_dict()
        return {name: value.clone() for name, value in model.state_dict().items()}


def require_equal(case, theirs):
    outcome = train(toy(), case[0], recipe(optimizer=case[1]))
    for ours, their in zip(outcome.weights, theirs, strict=True):
        torch.testing.assert_close(ours, their, rtol=1e-4, atol=1e-5)


def toy(steps=STEPS):
    """Return a task with made data whose labels can be learned."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(400, 12, generator=chance)
    y = (x @ torch.randn(12, 3, generator=chance)).argmax(1)
    return LabTask(
        name="toy",
        model=lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)),
        loss=cross_entropy,
        train=(x[:320], y[:320]),
        held_out=(x[320:], y[320:]),
        batch=8,
        steps=steps,
        first_lr={"SGD": 0.05, "AdamW": 0.01},
    )


def recipe(**other):
    return Recipe(
        **{"optimizer": "SGD", "lr": 0.05, "seed": 3, "ranks": RANKS, "every": 5, "keep_weights": True, **other}
    )


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/quality."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "quality"))
    return importlib.import_module


@pytest.mark.parametrize("case", FEW)
def test_a_training_is_that_of_ranks_which_train_by_themselves(case):
    first = first_model()
    theirs = pliant.run_world(RANKS, lambda place: trained_alone(case, first, place.rank, place.process_group))
    require_equal(case, theirs)


@pytest.mark.extended
def test_a_training_is_that_of_processes_which_train_by_themselves(tmp_path):
    processes = ranks.fork(_RANK, RANKS, tmp_path)
    assert [process.wait(120) for process in processes] == [0] * RANKS, [ranks.said(tmp_path, r) for r in range(RANKS)]
    by_rank = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    for case, *theirs in zip(CASES, *by_rank, strict=True):
        require_equal(case, theirs)


def test_a_training_ends_at_its_target_and_lets_worse_exchanges_differ():
    whole = train(toy(40), "bf16", recipe())
    assert [point["step"] for point in whole.curve] == list(range(5, 41, 5))
    target = whole.curve[4]["loss"]
    short = train(toy(40), "bf16", recipe(target=target))
    assert short.curve == whole.curve[: len(short.curve)]
    assert short.curve[-1]["loss"] <= target
    assert all(point["loss"] > target for point in short.curve[:-1])
    assert train(toy(40), "onebit", recipe()).curve != whole.curve
    assert train(toy(40), "bf16", recipe(last_step=3)).curve[-1]["step"] == 3


def test_a_training_that_diverges_says_so():
    outcome = train(toy(), "bf16", recipe(lr=1e38))
    assert outcome.diverged
    assert len(outcome.curve) < 2


class Odd(LabTask):
    """One batch of the second rank is not finite."""

    def batch_of(self, step, rank, ranks, seed):
        x, y = super().batch_of(step, rank, ranks, seed)
        return (x * torch.inf if (step, rank) == (2, 1) else x), y


@pytest.mark.parametrize("what", ["local_sgd(period=2)", "streaming_diloco(period=4, fragments=2, delay_steps=1)"])
def test_a_rank_that_diverges_alone_ends_the_training(what, monkeypatch):
    """As where weights are exchanged; others learn of it when they wait for it, and not from a timeout."""
    monkeypatch.setattr(training, "TIMEOUT_S", 30.0)
    outcome = train(Odd(**vars(toy(40))), what, recipe())
    assert outcome.diverged
    assert outcome.curve == []


def test_rates_rise_fall_and_stay():
    factors = [rate_factor(step, 100) for step in range(200)]
    assert factors[:10] == sorted(factors[:10])
    assert factors[9] == max(factors) == 1
    assert factors[9:] == sorted(factors[9:], reverse=True)
    assert factors[100:] == [pytest.approx(0.1)] * 100


@pytest.mark.parametrize(
    ("wrong", "sentence"), [({"optimizer": "Lion"}, "there are SGD, AdamW"), ({"ranks": 0}, "ranks and every")]
)
def test_recipes_that_cannot_be_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        recipe(**wrong)


def test_a_ratio_is_of_first_crossings_on_straight_lines():
    curve = [(10, 4.0), (20, 2.0), (30, 2.5), (40, 1.0), (50, 0.9)]
    assert target_of(curve) == 1.0
    assert [step_reaching(curve, target) for target in (3.0, 2.0, 9.0, 0.5)] == [15, 20, 10, None]
    with pytest.raises(ValueError, match="after 10, 25"):
        target_of([(10, 1.0), (25, 1.0)])


@pytest.mark.parametrize("best", [2.0**-3, 1.0, 2.0**3])
def test_a_tuned_rate_has_two_neighbours_that_are_worse(best):
    rate, losses = tuned_rate(1.0, lambda rate: 1e9 if rate > 4 * best else abs(rate - best))
    assert rate == best
    assert losses[best] < min(losses[best / 2], losses[2 * best])
    between = best * 2**0.5
    assert tuned_rate(1.0, lambda rate: round(abs(math.log2(rate / between)), 6))[0] in (best, 2 * best)
    with pytest.raises(ValueError, match="no learning rate"):
        tuned_rate(1.0, lambda rate: -rate)


def test_small_models_have_the_shapes_that_they_say():
    assert CharLstm(40)(torch.zeros(2, 7, dtype=torch.long)).shape == (2, 7, 40)
    assert ClickMlp(9)(torch.zeros(5, 9)).shape == (5, 1)
    with pytest.raises(ValueError, match="no task 'words'"):
        load_task("words")


def test_the_list_of_trials_is_what_its_command_makes(load):
    trials = load("trials")
    assert trials.read() == json.loads(json.dumps(trials.listed()))
    names = [tuple(trial[name] for name in load("steps_ratio").KEY) for trial in trials.read()]
    assert len(set(names)) == len(names)
    plans = [load("steps_ratio").Genome(gene).plan() for gene in trials.GENES]
    assert all(isinstance(plan, SyncPlan) for plan in plans)
    assert len({gene.family for gene in trials.GENES}) >= 8


def test_trials_are_carried_out_once_and_in_order(load, tmp_path, monkeypatch, capsys):
    job, trials = load("steps_ratio"), load("trials")
    monkeypatch.setattr(job, "RANKS", RANKS)
    monkeypatch.setattr(job, "load_task", lambda name, data: toy(50))
    gene = trials.GENES[0]
    listed = [trials.record("tuned", "lstm", "SGD", trials.BASE, RANKS, 0)]
    listed += [trials.record(kind, "lstm", "SGD", g, RANKS, 0) for kind, g in (("base", trials.BASE), ("curve", gene))]
    monkeypatch.setattr(job, "read", lambda: listed)
    out = tmp_path / "lines.jsonl"
    with pytest.raises(ValueError, match="needs the trial tuned/lstm"):
        job.main(["--out", str(out), "--only", "base/*"])
    job.main(["--out", str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["tuned", "base", "curve"]
    assert lines[1]["step"] <= 40
    assert dict(lines[1]["curve"])[40] == lines[1]["target"]
    assert lines[2]["ratio"] == lines[2]["step"] / lines[1]["step"]
    written = out.read_text()
    job.main(["--out", str(out)])
    assert out.read_text() == written
    assert "quantized(bits=8) on 2 ranks" in capsys.readouterr().out


def test_a_row_is_the_median_over_tasks_of_means_over_seeds(load):
    fit = load("fit")

    def line(task, seed, ratio, why=""):
        facts = {
            "setting": "local(every=8)",
            "family": "local",
            "settings": {"every": 8},
            "optimizer": "AdamW",
            "ranks": 4,
        }
        return {"kind": "curve", "task": task, "seed": seed, "ratio": ratio, "why": why, **facts}

    lines = [line(task, seed, ratio) for task, ratio in (("a", 1.1), ("b", 1.2), ("c", 1.25)) for seed in range(3)]
    lines += [line("d", 0, 1.9), line("a", 3, None, "refused: no"), {"kind": "base", "setting": "exact(bits=16)"}]
    [row] = fit.rows(lines, 3, 3)
    assert (row["ratio"], row["highest"], row["tasks"]) == (1.2, 1.25, 3)
    assert fit.rows(lines, 4, 3) == []
    lost = [line("a", seed, None, "not reached") for seed in range(3)]
    assert fit.rows([*lost, *lines[3:9]], 3, 3)[0]["highest"] is None
    assert "AdamW: 67% of 3 held-out pairs" in fit.report(lines, 3, 3)
    assert fit.held_out({"a": 1.0}) == {}


def test_lines_that_name_a_size_make_a_row_of_each(load):
    fit = load("fit")

    def line(parameters, seed, ratio, task="32 windows"):
        facts = {"setting": "local(every=8)", "family": "local", "settings": {"every": 8}, "optimizer": "AdamW"}
        size = {"ranks": 4, "steps": 1000, "parameters": parameters, "limit": 1.25}
        return {"kind": "curve", "task": task, "seed": seed, "ratio": ratio, "why": "", **facts, **size}

    lines = [line(n, seed, r) for n, r in ((60_000, 1.2), (400_000, 1.1), (3_000_000, 1.15)) for seed in range(3)]
    rows = fit.rows(lines, 3, 3)
    keys = ("parameters", "ratio", "highest", "tasks", "limit", "steps")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (60_000, 1.2, 1.2, 1, 1.25, 1000),
        (400_000, 1.1, 1.1, 1, 1.25, 1000),
        (3_000_000, 1.15, 1.15, 1, 1.25, 1000),
    ]
    assert "1 of 2 ratios are no higher than on the next smaller model." in fit.report(lines, 3, 3)
    [row] = fit.rows([line(60_000, 3, None), *lines[:3]], 3, 3)
    assert row["ratio"] is row["highest"] is None
    batches = [
        line(60_000, seed, ratio, f"{windows} windows")
        for windows, ratio in ((32, None), (128, None), (512, 1.2))
        for seed in range(3)
    ]
    assert "AdamW: 67% of 3 held-out pairs" in fit.report(batches, 3, 3)
