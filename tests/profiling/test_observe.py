"""What an observation says of known networks, and that the training does not notice."""

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

import pliant
import pliant.codecs as c
from models import Net, batch, new_ddp, train, weights
from pliant.profiling.gradient_statistics import noise_scale
from pliant.spec import Workload, from_json, to_json
from sleepy import Sleepy, SleepySGD, step
from waiting import made_up_clock


def on_a_made_up_clock(monkeypatch):
    """Return a clock on which times are taken, and a model that takes its time from it."""
    clock = made_up_clock()
    monkeypatch.setattr("pliant.engine.device_timer.time", clock)
    return clock, Sleepy(clock)


def test_times_and_order_of_a_known_network(monkeypatch):
    clock, model = on_a_made_up_clock(monkeypatch)
    optimizer = SleepySGD(model.parameters(), lr=0.01)
    optimizer.clock = clock
    with pliant.observe(model, optimizer, steps=3, warmup_steps=1, gradient_steps=0) as seen:
        count = 0
        while not seen.done:
            step(model, optimizer, torch.randn(2, 4, requires_grad=True))
            count += 1
    assert count == 4
    found = seen.workload("sleepy")
    assert found.name == "sleepy"
    assert [t.name for t in found.tensors] == [f"layers.{k}.weight" for k in (3, 2, 1, 0)]
    assert {t.layer for t in found.tensors} == {"Linear"}
    assert [t.shape for t in found.tensors] == [(4, 4)] * 4
    assert [t.ready_s for t in found.tensors] == pytest.approx([0, 0.05, 0.09, 0.12])
    assert found.forward_s == pytest.approx(0.04)
    assert found.backward_s == pytest.approx(0.12)  # the gradient of the input is no parameter's
    assert found.step_s == pytest.approx(0.003)
    assert found.rank_factors == (1.0,)
    assert found.noise_scale is None
    assert from_json(Workload, to_json(found)) == found


def test_micro_batches_before_the_last_are_computing_before_it(monkeypatch):
    _, model = on_a_made_up_clock(monkeypatch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pliant.observe(model, optimizer, steps=2, warmup_steps=0, gradient_steps=0) as seen:
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(2, 4, requires_grad=True)).sum().backward()
            with torch.no_grad():
                model(torch.randn(2, 4))  # an evaluation is no part of the step
            optimizer.step()
            optimizer.zero_grad()
    found = seen.workload()
    assert found.forward_s == pytest.approx(2 * 0.04 + 0.12)
    assert found.backward_s == pytest.approx(0.12)


def test_a_forward_pass_that_has_raised_is_no_part_of_a_step(monkeypatch):
    _, model = on_a_made_up_clock(monkeypatch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pliant.observe(model, optimizer, steps=2, warmup_steps=0, gradient_steps=0) as seen:
        for _ in range(2):
            with pytest.raises(RuntimeError):  # as where a batch is too large, and a smaller one follows
                model(torch.randn(2, 5))
            step(model, optimizer, torch.randn(2, 4))
    assert seen.workload().forward_s == pytest.approx(0.04)


@dataclass(slots=True)
class Slotted:
    """What a model returns, without a dictionary."""

    logits: torch.Tensor
    name: str = "logits"


class ReturnsSlots(nn.Linear):
    """Returns an object that has slots."""

    def forward(self, x):
        return Slotted(super().forward(x))


def test_the_output_may_be_a_dataclass_with_slots():
    model = ReturnsSlots(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pliant.observe(model, optimizer, steps=1, warmup_steps=0, gradient_steps=0) as seen:
        model(torch.randn(2, 4)).logits.sum().backward()
        optimizer.step()
    assert not seen.blind
    assert seen.workload().numel == 20


def test_rows_of_a_sparse_gradient_are_those_of_the_whole_step():
    model = nn.Embedding(10, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pliant.observe(model, optimizer, steps=1, warmup_steps=0, gradient_steps=2) as seen:
        for rows in ((0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7, 8, 9)):
            optimizer.zero_grad()
            for micro_batch in (rows[:2], rows[2:]):
                model(torch.tensor(micro_batch)).sum().backward()
            optimizer.step()
    (table,) = seen.workload().tensors
    assert table.sparse_rows == (4 + 6) / 2


def test_hooks_go():
    model = Sleepy(made_up_clock())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = pliant.observe(model, optimizer, steps=1, warmup_steps=0, gradient_steps=1)
    for _ in range(4):
        step(model, optimizer, torch.randn(2, 4))
    seen.workload()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_ranks_whose_clocks_differ_say_one_time(monkeypatch):
    hours = itertools.count()

    class Clock(datetime):
        @classmethod
        def now(cls, tz):
            return datetime(2026, 1, 1, tzinfo=tz) + timedelta(hours=next(hours))

    monkeypatch.setattr(import_module("pliant.profiling.observe"), "datetime", Clock)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with pliant.observe(ddp, optimizer, steps=1, warmup_steps=0, group=place.process_group) as seen:
            train(ddp, optimizer, place.rank, range(6))
        return seen.workload()

    assert len(set(pliant.run_world(3, body))) == 1


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("synchronized", [True, False])
def test_gradient_statistics_are_those_of_numpy(size, synchronized):
    codecs = [c.Qsgd(bits=4, block=64), c.TopK(ratio=0.1)]
    qsgd, largest = (str(c.spec_of(codec)) for codec in codecs)

    def body(place):
        model = new_ddp(place) if synchronized else Net()
        if not synchronized:
            model.load_state_dict(new_ddp(place).module.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        kept = []
        seen = pliant.observe(
            model,
            optimizer,
            steps=1,
            warmup_steps=0,
            gradient_steps=3,
            codecs=codecs,
            batch_size=8,
            group=place.process_group,
            timeout_s=30,
        )
        twin = Net()  # the same gradients, by themselves
        twin.load_state_dict(getattr(model, "module", model).state_dict())
        with seen:
            for k in range(4):
                step(model, optimizer, *batch(place.rank, k))
                twin.zero_grad()
                x, y = batch(place.rank, k)
                nn.functional.cross_entropy(twin(x), y).backward()
                kept.append([p.grad.flatten().numpy().astype(np.float64) for p in twin.parameters()])
        return seen.workload(), kept[1:], [n for n, _ in twin.named_parameters()]

    results = pliant.run_world(size, body)
    assert len({result[0] for result in results}) == 1
    found, _, names = results[0]
    own = np.mean([sum(np.square(t).sum() for s in kept for t in s) for _, kept, _ in results])
    mean = [[np.mean([kept[k][t] for _, kept, _ in results], axis=0) for t in range(len(names))] for k in range(3)]
    together = sum(np.square(t).sum() for s in mean for t in s)
    if size == 1:
        assert found.noise_scale is None
    else:
        signal = (size * together - own) / (size - 1)
        noise = (own - together) * size * 8 / (size - 1)
        assert (
            found.noise_scale is None if signal <= 0 else found.noise_scale == pytest.approx(noise / signal, rel=1e-2)
        )
    for tensor in found.tensors:
        k = names.index(tensor.name)
        gradients = [s[k] for _, kept, _ in results for s in kept]
        share = sum(np.square(g).sum() for g in gradients) / (own * size)
        assert tensor.gradient_share == pytest.approx(share, rel=1e-3, abs=1e-9)
        topk = sum(np.sort(np.square(g))[: g.size - int(np.ceil(0.1 * g.size))].sum() for g in gradients)
        total = sum(np.square(g).sum() for g in gradients)
        if share > 1e-9:  # what BatchNorm makes zero is rounding
            assert tensor.gradient_error[largest] == pytest.approx(topk / total, rel=1e-2, abs=1e-6)
            assert 0 < tensor.gradient_error[qsgd] < 1
    assert found.gradient_error(largest) < 0.9
    with pytest.raises(ValueError, match="not measured under 'sign', but under qsgd"):
        found.gradient_error("sign")


def test_the_noise_scale_of_known_noise():
    rng = np.random.default_rng(0)
    dim, batch_size, size, sigma = 6000, 4, 8, 0.5
    g = rng.standard_normal(dim) * 0.1
    own = together = 0.0
    for _ in range(20):
        ranks = g + sigma / np.sqrt(batch_size) * rng.standard_normal((size, dim))
        own += np.square(ranks).sum(1).mean()
        together += np.square(ranks.mean(0)).sum()
    wanted = dim * sigma**2 / np.square(g).sum()
    assert noise_scale(own, together, size, batch_size) == pytest.approx(wanted, rel=0.05)
    assert noise_scale(own, own / size / 2, size, batch_size) is None


def test_sketches_of_large_gradients_keep_the_norm():
    from pliant.profiling.gradient_statistics import GradientStatistics

    def body(place):
        shadow = GradientStatistics({"a": 100_003, "b": 7}, [])
        for k in range(3):
            g = torch.Generator().manual_seed(k)
            common = torch.randn(100_003, generator=g)
            mine = torch.randn(100_003, generator=torch.Generator().manual_seed(100 + 10 * k + place.rank))
            shadow.take("a", common + mine)
            shadow.take("b", torch.ones(7))
            shadow.end_step()
        return shadow.share(place.comm, torch.device("cpu"))

    seen = pliant.run_world(2, body)[0]
    assert seen.own == pytest.approx(3 * 200_013, rel=0.02)
    assert seen.together == pytest.approx(3 * 150_010, rel=0.03)


def test_sketches_of_steps_err_independently():
    """A step's norm is right to 1.6 %; that of 64 steps with one gradient to an eighth of it."""
    from pliant.profiling.gradient_statistics import GradientStatistics

    def body(place):
        shadow = GradientStatistics({"a": 100_003}, [])
        for _ in range(64):
            shadow.take("a", torch.randn(100_003, generator=torch.Generator().manual_seed(0)))
            shadow.end_step()
        return shadow.share(place.comm, torch.device("cpu"))

    seen = pliant.run_world(1, body)[0]
    assert seen.together == pytest.approx(seen.own, rel=0.006)


@pytest.mark.parametrize("what", [None, "bytegrad"])
def test_training_is_bit_for_bit_what_it_is_unobserved(what):
    def body(place):
        found = []
        for observed in (False, True):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
            codecs = [c.Qsgd(), c.RandomK(), c.TopK()]
            seen = pliant.observe(ddp, optimizer, steps=2, gradient_steps=2, codecs=codecs) if observed else None
            run = pliant.relax(ddp, optimizer, what, timeout_s=30) if what else None
            losses = train(ddp, optimizer, place.rank, range(8))
            if seen is not None:
                assert seen.workload().rank_factors
            if run is not None:
                run.close()
            found.append((losses, weights(ddp)))
        assert found[0][0] == found[1][0]
        assert torch.equal(found[0][1], found[1][1])

    before = torch.get_rng_state()
    pliant.run_world(2, lambda _: None)
    pliant.run_world(2, body, timeout_s=60)
    torch.manual_seed(0)
    assert torch.equal(before, torch.get_rng_state())


def test_observing_draws_nothing_from_torch():
    model = nn.Linear(30, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = torch.get_rng_state()
    x = torch.ones(2, 30)
    seen = pliant.observe(model, optimizer, steps=1, warmup_steps=0, gradient_steps=1, codecs=[c.Qsgd(), c.RandomK()])
    for _ in range(2):
        step(model, optimizer, x)
    seen.workload()
    assert torch.equal(state, torch.get_rng_state())


def test_a_step_with_an_overflow_counts_for_nothing():
    def body(place):
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        seen = pliant.observe(
            model, optimizer, steps=1, warmup_steps=0, gradient_steps=2, group=place.process_group, timeout_s=30
        )
        for k in range(3):
            x = torch.ones(2, 3) * (torch.inf if k == 2 and place.rank == 1 else 1.0)
            step(model, optimizer, x)
        return seen.workload()

    assert "gradients of 1 looked at" in pliant.run_world(2, body)[0].provenance


def test_what_one_rank_alone_cannot_observe_is_said_on_all():
    """Else the others would wait for what it never sends."""

    def body(place):
        model, said = nn.Linear(3, 3), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for blind, num_steps in ((place.rank == 1, 2), (False, 2 - place.rank)):
            seen = pliant.observe(
                model, optimizer, steps=2, warmup_steps=0, gradient_steps=0, group=place.process_group, timeout_s=30
            )
            for _ in range(num_steps):
                x = torch.ones(1, 3)
                (nn.functional.linear(x, model.weight, model.bias) if blind else model(x)).sum().backward()
                optimizer.step()
            with pytest.raises((RuntimeError, ValueError)) as told:
                seen.workload()
            seen.close()
            said.append(str(told.value))
        return said

    (blind, few), (own_blind, own_few) = pliant.run_world(2, body, timeout_s=60)
    assert blind == f"rank 1 could not, and so no rank does. Rank 1: {own_blind}"
    assert few == f"rank 1 could not, and so no rank does. Rank 1: {own_few}"
    assert "the start of backward was not seen" in own_blind
    assert "needs 2 steps, but saw 1" in own_few


def test_what_cannot_be_observed_is_said():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.raises(ValueError, match="0 steps, 2 warmup_steps"):
        pliant.observe(model, optimizer, steps=0)
    for wrong in ({"warmup_steps": -1}, {"gradient_steps": -1}, {"batch_size": 0}, {"ranks": (1, 0)}):
        with pytest.raises(ValueError, match="must be at least 1, the others at least 0"):
            pliant.observe(model, optimizer, **wrong)
    seen = pliant.observe(model, optimizer, steps=2, warmup_steps=0, gradient_steps=0)
    with pytest.raises(ValueError, match="needs 2 steps, but saw 0"):
        seen.workload()
    for _ in range(2):
        nn.functional.linear(torch.ones(1, 3), model.weight, model.bias).sum().backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match="the start of backward was not seen"):
        seen.workload()
    seen.close()
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        pliant.observe(model.requires_grad_(False), optimizer)


def test_what_a_matrix_has_beyond_a_low_rank():
    model = nn.Linear(64, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    left, right = torch.linalg.qr(torch.randn(48, 4)).Q, torch.linalg.qr(torch.randn(64, 4)).Q
    gradient = left @ torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0])) @ right.T  # (48, 64), of known singular values
    with pliant.observe(model, optimizer, steps=1, warmup_steps=0, gradient_steps=1, ranks=(8, 4, 2, 1, 40)) as seen:
        while not seen.done:
            optimizer.zero_grad()
            out = model(torch.zeros(1, 64))
            ((model.weight * gradient).sum() + out.sum()).backward()
            optimizer.step()
    weight, bias = sorted(seen.workload().tensors, key=lambda t: -t.numel)
    for rank, beyond in {8: 0, 4: 0, 2: 5, 1: 21, 40: 0}.items():
        assert weight.gradient_error[f"rank(rank={rank})"] == pytest.approx(beyond / 85, rel=0.1, abs=1e-6)
        assert bias.gradient_error[f"rank(rank={rank})"] == 0
    with pytest.raises(ValueError, match="ranks must be at least 1"):
        pliant.observe(model, optimizer, ranks=(0,))
