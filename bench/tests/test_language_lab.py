"""Language models in the laboratory: their sizes, their optimizers, and workers that are threads or processes."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon

import pliant
from pliant_bench.data.text import load_text, python_text
from pliant_bench.lab.decoder import SIZES, Decoder
from pliant_bench.lab.language import first_rate, language_task, save_text, text_name
from pliant_bench.lab.optimizers import OPTIMIZERS, hidden_matrices, make_optimizers
from pliant_bench.lab.processes import RankProcesses
from pliant_bench.lab.second_moment import SharedMomentAdamW
from pliant_bench.lab.training import Recipe, first_model, rate_factor, train

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


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_workers_that_are_processes_train_as_threads_do(folder, case):
    """One training after the other."""
    by_threads = trained(folder, *case)
    with RankProcesses("cpu") as ranks:
        for _ in range(2):
            how = recipe(optimizer=case[1], keep_weights=True)
            outcome = ranks.train({**SMALL, "folder": folder}, case[0], how)
            require_equal(by_threads.weights, outcome.weights)
            assert (outcome.curve, outcome.sent_bytes) == (by_threads.curve, by_threads.sent_bytes)


@pytest.mark.extended
def test_a_rank_that_fails_is_one_line(folder):
    with (
        RankProcesses("cpu") as ranks,
        pytest.raises(RuntimeError, match=r"rank \d failed: .*ValueError: there is no algorithm 'lion_loco'"),
    ):
        ranks.train({**SMALL, "folder": folder}, "lion_loco", recipe())


@pytest.mark.extended
def test_ranks_begin_anew_after_a_training_that_fails_or_diverges_and_in_other_numbers(folder):
    given = {**SMALL, "folder": folder}
    with RankProcesses("cpu") as ranks:
        with pytest.raises(RuntimeError, match=r"rank \d failed"):
            ranks.train(given, "lion_loco", recipe())
        assert ranks.train(given, "bf16", recipe(lr=1e30)).diverged
        for num in (RANKS, 1):
            outcome = ranks.train({**given, "ranks": num}, "bf16", recipe(ranks=num, keep_weights=True))
            assert not outcome.diverged
            assert len(outcome.weights) == num


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
    assert len(OPTIMIZERS) == 8


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


@pytest.mark.extended
def test_the_text_of_this_machine_is_the_same_on_another(tmp_path):
    save_text(tmp_path)
    assert text_name(str(tmp_path)) == text_name("")
    here, there = python_text(), load_text(tmp_path)
    assert there.vocabulary == here.vocabulary
    assert torch.equal(there.train, here.train)
    assert torch.equal(there.held_out, here.held_out)


def test_the_text_of_this_machine_is_not_written_beside_another(tmp_path):
    (tmp_path / "more.txt").write_text("of somebody else")
    with pytest.raises(ValueError, match=r"has files, which would be read with .* give an empty folder"):
        save_text(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["more.txt"]


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
    with pytest.raises(ValueError, match=r"no decay 'step' .* there are linear, cosine"):
        recipe(decay="step")
