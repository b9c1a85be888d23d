"""Local steps of language models: the laboratory's models and optimizers, and the job with its journal and page."""

import copy
import importlib
import itertools
import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon

import pliant
from pliant_bench.data.text import python_text
from pliant_bench.lab.decoder import SIZES, Decoder
from pliant_bench.lab.language import first_rate, language_task
from pliant_bench.lab.optimizers import OPTIMIZERS, hidden_matrices, make_optimizers
from pliant_bench.lab.processes import train_in_processes
from pliant_bench.lab.second_moment import SharedMomentAdamW
from pliant_bench.lab.training import Outcome, Recipe, first_model, rate_factor, train

RANKS, STEPS = 2, 6
RATE = 0.01
SMALL = {"size": "0.06M", "windows": 4, "ranks": RANKS, "steps": STEPS}
CASES = (("bf16", "Muon"), ("diloco(period=3, outer_momentum=0.6)", "Muon"), ("local_sgd(period=2)", "AdamW"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of made text."""
    texts = tmp_path_factory.mktemp("texts")
    for k in range(20):
        words = [f"{'abcdef'[(k * i) % 6]}{i % 7} is {'xyz'[i % 3]}" for i in range(300)]
        (texts / f"{k:02}.txt").write_text("\n".join(words))
    return str(texts)


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/local_steps, which has names in common with other folders."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "local_steps"))
    for name in ("trials", "rates", "measure", "page"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in ("trials", "rates", "measure", "page"):
        sys.modules.pop(name, None)


def task(folder, **other):
    return language_task(folder=folder, **{**SMALL, **other})


def recipe(**other):
    return Recipe(**{"optimizer": "AdamW", "lr": RATE, "seed": 3, "ranks": RANKS, "every": 3, **other})


def trained(folder, what, optimizer):
    return train(task(folder), what, recipe(optimizer=optimizer, keep_weights=True))


def trained_alone(learned, first, case, place):
    """Train one rank without the laboratory; return its weights at the end."""
    what, name = case
    model = copy.deepcopy(first)
    hidden = hidden_matrices(model)
    others = [p for p in model.parameters() if not any(p is matrix for matrix in hidden)]
    muon = Muon(hidden, lr=RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw") if name == "Muon" else None
    adamw = AdamW(others if muon else model.parameters(), lr=RATE)
    optimizers = [muon, adamw] if muon else [adamw]
    with pliant.relax(model, optimizers, what, group=place.process_group) as run:
        for step in range(STEPS):
            x, y = learned.batch_of(step, place.rank, RANKS, 3)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = RATE * rate_factor(step, STEPS)
                optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(x).flatten(0, 1), y.flatten()).backward()
            for optimizer in optimizers:
                optimizer.step()
        run.state_dict()
        return {key: value.clone() for key, value in model.state_dict().items()}


def require_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_a_training_with_two_optimizers_is_that_of_ranks_which_train_by_themselves(folder, case):
    learned = task(folder)
    first = first_model(learned, 3)
    theirs = pliant.run_world(RANKS, lambda place: trained_alone(learned, first, case, place))
    require_equal(trained(folder, *case).weights, theirs)


@pytest.mark.parametrize(
    "case", [CASES[1], *(pytest.param(case, marks=pytest.mark.extended) for case in (CASES[0], CASES[2]))]
)
def test_workers_that_are_processes_train_as_threads_do(folder, case):
    outcome = train_in_processes(
        {**SMALL, "folder": folder}, case[0], recipe(optimizer=case[1], keep_weights=True), "cpu"
    )
    by_threads = trained(folder, *case)
    require_equal(by_threads.weights, outcome.weights)
    assert (outcome.curve, outcome.sent_bytes) == (by_threads.curve, by_threads.sent_bytes)


def test_a_rank_that_fails_is_one_line(folder):
    with pytest.raises(RuntimeError, match=r"rank \d failed: .*ValueError: there is no algorithm 'lion_loco'"):
        train_in_processes({**SMALL, "folder": folder}, "lion_loco", recipe(), "cpu")


def test_what_judging_sends_is_not_of_the_exchange(folder):
    numel = sum(parameter.numel() for parameter in task(folder).model().parameters())
    whole = 2 * (RANKS - 1) / RANKS * numel * RANKS
    local, ddp = (trained(folder, what, "AdamW") for what in ("local_sgd(period=3)", "bf16"))
    assert (local.exchanges, ddp.exchanges) == (STEPS // 3, STEPS)
    assert local.sent_bytes * STEPS == pytest.approx(4 * whole * local.exchanges)
    assert ddp.sent_bytes == pytest.approx(2 * whole, rel=0.01)


@pytest.mark.parametrize("of", ["gradient", "moment"])
def test_alone_a_shared_second_moment_is_adamw(of):
    torch.manual_seed(0)
    weights = torch.randn(5, 4, dtype=torch.float64)
    gradients = torch.randn(7, 5, 4, dtype=torch.float64)
    pair = [nn.Parameter(weights.clone()) for _ in range(2)]
    ours = SharedMomentAdamW(pair[:1], list, lr=RATE, of=of)
    theirs = AdamW(pair[1:], lr=RATE)
    for gradient in gradients:
        for parameter, optimizer in zip(pair, (ours, theirs), strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-12)


def test_a_common_second_moment_is_unchanged_between_its_gradients():
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = SharedMomentAdamW([weight], list, lr=RATE, of="gradient", period=4, dense_steps=2)
    seen = []
    for step in range(1, 13):
        weight.grad = torch.full_like(weight, 2.0)
        optimizer.step()
        seen.append(float(optimizer.state[weight]["exp_avg_sq"][0]))
        counted = max((n for n in (1, 2, 4, 8, 12) if n <= step), default=0)
        assert seen[-1] == pytest.approx(4 * (1 - 0.999**counted))
    moved = 1 - 0.01 * RATE
    one_step = torch.full_like(weight, (moved - RATE))
    again = nn.Parameter(torch.ones_like(weight))
    first = SharedMomentAdamW([again], list, lr=RATE, of="gradient", period=4)
    again.grad = torch.full_like(again, 2.0)
    first.step()
    torch.testing.assert_close(again.detach(), one_step, rtol=1e-8, atol=1e-8)


def test_with_a_common_second_moment_averaged_weights_are_data_parallel_adamw(folder):
    exact = trained(folder, "allreduce", "AdamW").weights[0]
    common = trained(folder, "local_sgd(period=1)", "AdamW+common_v").weights
    own = trained(folder, "local_sgd(period=1)", "AdamW").weights[0]
    require_near = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    for weights in common:
        require_near(weights, exact)
    with pytest.raises(AssertionError):
        require_near(own, exact)


def test_muon_has_the_matrices_of_blocks_and_adamw_all_else():
    model = Decoder(50, SIZES["0.06M"])
    muon, adamw = make_optimizers("Muon", model, RATE, list)
    names = {id(p): name for name, p in model.named_parameters()}
    held = [{names[id(p)] for group in optimizer.param_groups for p in group["params"]} for optimizer in (muon, adamw)]
    assert held[0] == {f"blocks.0.{layer}.weight" for layer in ("query", "key", "value", "attended", "up", "down")}
    assert held[0] | held[1] == set(names.values())
    assert not held[0] & held[1]


def test_optimizers_of_pliant_are_found_by_name(monkeypatch):
    monkeypatch.setattr(pliant, "Own", torch.optim.RMSprop, raising=False)
    [optimizer] = make_optimizers("Own", nn.Linear(2, 2), RATE, list)
    assert isinstance(optimizer, torch.optim.RMSprop)
    for wrong in ("relax", "Lion"):
        with pytest.raises(ValueError, match=f"no optimizer '{wrong}' .* there are SGD, AdamW, Muon"):
            recipe(optimizer=wrong)
    assert len(OPTIMIZERS) == 6


@pytest.mark.parametrize("size", SIZES)
def test_decoders_are_as_large_as_they_say(size):
    with torch.device("meta"):
        model = Decoder(98, SIZES[size])
    numel = sum(parameter.numel() for parameter in model.parameters())
    assert numel / 1e6 == pytest.approx(float(size.removesuffix("M")), rel=0.12)


def test_a_decoder_sees_no_later_character():
    model = Decoder(20, SIZES["0.06M"])
    x = torch.randint(0, 19, (3, 64))
    changed = x.clone()
    changed[:, 40:] = 19
    torch.testing.assert_close(model(x)[:, :40], model(changed)[:, :40])
    assert not torch.allclose(model(x)[:, 40:], model(changed)[:, 40:])


def test_the_text_is_on_every_machine():
    text = python_text()
    assert 90 <= text.vocabulary <= 130
    assert text.train.shape[0] > 100_000
    assert text.num_held_out == 2000


def test_tasks_that_cannot_be_are_refused(folder):
    with pytest.raises(ValueError, match=r"no decoder of 7B; there are 0\.06M"):
        task(folder, size="7B")
    with pytest.raises(ValueError, match="5 windows cannot be divided among 2 ranks"):
        task(folder, windows=5)
    assert task(folder).batch == 2
    assert first_rate("0.4M", 512) == 4 * first_rate("0.4M", 32)


def test_both_decays_begin_and_end_alike():
    linear, cosine = ([rate_factor(step, 100, decay) for step in range(150)] for decay in ("linear", "cosine"))
    for factors in (linear, cosine):
        assert factors[9] == max(factors) == 1
        assert factors[100:] == [pytest.approx(0.1)] * 50
        assert factors[9:101] == sorted(factors[9:101], reverse=True)
    assert cosine[30] > linear[30]
    assert cosine[80] < linear[80]


# - The job


def trial(load, kind, arm, **other):
    made = load("trials").record(kind, arm, load("trials").Cell(size="0.06M"), other.pop("seed", 0))
    return {**made, **other}


def outcome_at(best):
    """Return a training that takes no time, whose loss is lowest at one rate."""

    def fake(task, what, recipe):
        loss = 1 + abs(math.log2(recipe.lr / best)) / 10 + recipe.seed / 100 + (0.5 if "local" in what else 0)
        curve = [{"step": task.steps, "loss": loss}]
        return Outcome(curve=curve, diverged=False, sent_bytes=8e6, exchanges=31, wall_s=0.0, weights=[])

    return fake


def run_job(load, monkeypatch, folder, out, trials, best=2.0**-5, *arguments):
    job = load("measure")
    monkeypatch.setattr(job, "read", lambda: trials)
    monkeypatch.setattr(job, "train", outcome_at(best))
    job.main(["--out", str(out), "--text", folder, *arguments])
    return lines_of(out)


def lines_of(out):
    """Return the whole lines of a file."""
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")] if out.exists() else []


def test_the_list_of_trials_is_what_its_command_makes(load):
    trials = load("trials")
    assert trials.read() == json.loads(json.dumps(trials.listed()))
    keys = [trials.key_of(each) for each in trials.read()]
    assert len(set(keys)) == len(keys)
    later = {"des_loc", "mt_dao", "pier", "acco", "delayed_nesterov"}
    for text in {each["algorithm"] for each in trials.read()}:
        known = text.replace("{steps}", "1000")
        assert text.split("(")[0] in later or "total_steps" in text or pliant.parse(known)
    assert {each["device"] for each in trials.read() if each["size"] == "125M"} == {"cuda"}


def test_a_rate_is_tuned_short_and_checked_long(load, monkeypatch, folder, tmp_path, capsys):
    arm = load("trials").ADAMW_DDP
    trials = [trial(load, kind, arm) for kind in ("tuned", "checked")] + [trial(load, "trained", arm, seed=2)]
    lines = run_job(load, monkeypatch, folder, tmp_path / "out", trials)
    rates = {steps: [line["lr"] for line in lines if line["steps"] == steps] for steps in (500, 1000)}
    assert sorted(rates[500]) == [2.0**-8, 2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4]
    assert sorted(set(rates[1000])) == [2.0**-6, 2.0**-5, 2.0**-4]
    assert [line["lr"] for line in lines if line["seed"] == 2] == [2.0**-5]
    assert "trained/AdamW/ddp/0.06M/32/4/1000/linear/2: rate 0.03125, loss 1.0200" in capsys.readouterr().out


def test_the_job_goes_on_where_it_stopped(load, monkeypatch, folder, tmp_path, capsys):
    trials, out = [trial(load, kind, load("trials").ADAMW_DDP) for kind in ("tuned", "checked")], tmp_path / "out"
    whole = run_job(load, monkeypatch, folder, out, trials)
    out.write_text("".join(json.dumps(line) + "\n" for line in whole[:3]) + '{"size": "0.06M", "wind')
    clock = itertools.count()
    monkeypatch.setattr(load("measure").time, "monotonic", lambda: next(clock))
    run_job(load, monkeypatch, folder, out, trials, 2.0**-5, "--seconds", "2")
    told = capsys.readouterr().out
    assert "the time is over; 2 trials are left" in told
    assert "1 trainings were made" in told
    run_job(load, monkeypatch, folder, out, trials, 2.0**-5, "--list")
    assert "2 of 2 trials are open" in capsys.readouterr().out
    assert run_job(load, monkeypatch, folder, out, trials) == whole
    written = out.read_text()
    run_job(load, monkeypatch, folder, out, trials)
    assert out.read_text() == written


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
    run_job(load, monkeypatch, folder, tmp_path / "out", [unknown], 2.0**-5, "--list")
    assert "open tuned/AdamW/lion_loco" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_job(load, monkeypatch, folder, tmp_path / "out", [unknown], 2.0**-5, "--device", "cuda")
    assert "no trial for cuda is called *" in capsys.readouterr().err


def test_a_training_of_the_job_is_one_of_the_laboratory(load, folder, tmp_path):
    job, rates = load("measure"), load("rates")
    about = {"size": "0.06M", "windows": 4, "ranks": RANKS, "steps": STEPS, "optimizer": "Muon", "decay": "cosine"}
    about |= {"algorithm": "local_sgd(period=2)", "lr": RATE, "seed": 1}
    line = job.Bench(rates.Trainings(tmp_path / "out"), "cpu", folder, math.inf).trained(about)
    ours = train(task(folder), "local_sgd(period=2)", recipe(optimizer="Muon", seed=1, every=1, decay="cosine"))
    assert line["curve"] == [(point["step"], round(point["loss"], 6)) for point in ours.curve]
    assert line["exchanges"] == STEPS // 2


def test_the_page_has_ratios_of_the_same_seeds(load, monkeypatch, folder, tmp_path, capsys):
    trials = load("trials")
    arms = (trials.ADAMW_DDP, trials.EVERY_STEP)
    listed = [*trials.in_cell(arms, trials.BASE, (0, 1)), trials.record("scaled", arms[1], trials.BASE, times=2.0)]
    out = tmp_path / "out"
    run_job(load, monkeypatch, folder, out, listed)
    monkeypatch.setattr(load("page"), "read", lambda: [*listed, *trials.in_cell(trials.MAIN, trials.BASE, (0,))])
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
