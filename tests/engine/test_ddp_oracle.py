"""A relaxed model behaves as plain DDP does, with DDP itself as the oracle."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from models import Net, batch, new_ddp, train, weights
from pliant.algorithms.plans import plan_of


def pair(place, model=Net, lr=0.05, nonfinite="raise", what="allreduce", **options):
    """Two equal models: plain DDP, and relaxed; each with its optimizer."""
    plain, relaxed = (new_ddp(place, model=model, **options) for _ in range(2))
    optimizers = [torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9) for m in (plain, relaxed)]
    run = pliant.relax(relaxed, optimizers[1], what, nonfinite=nonfinite, timeout_s=20)
    return plain, relaxed, *optimizers, run


def same(world, body, size=2):
    del world
    for one, other in pliant.run_world(size, body, timeout_s=30):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_allreduce_is_ddp_after_ten_steps_on_two_models(size):
    def body(place):
        out = []
        for _ in range(2):
            plain, relaxed, a, b, run = pair(place)
            train(plain, a, place.rank, range(10))
            train(relaxed, b, place.rank, range(10))
            run.close()
            out.append((weights(plain), weights(relaxed)))
        return torch.cat([o[0] for o in out]), torch.cat([o[1] for o in out])

    same(None, body, size)


def test_gradient_accumulation_and_no_sync():
    def body(place):
        results = []
        plain, relaxed, a, b, run = pair(place)
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            for step in range(4):
                optimizer.zero_grad()
                with ddp.no_sync():
                    x, y = batch(place.rank, 2 * step)
                    nn.functional.cross_entropy(ddp(x), y).backward()
                x, y = batch(place.rank, 2 * step + 1)
                nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()
            results.append(weights(ddp))
        assert run.stats()["exchanges"] == 4
        run.close()
        return results

    same(None, body)


class Branching(nn.Module):
    """Uses one of two layers, as it is told."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.choice = 0

    def forward(self, x):
        return (self.first, self.second)[self.choice](x)


def test_unused_parameters_with_the_flag():
    def body(place):
        results = []
        plain, relaxed, a, b, run = pair(place, model=Branching, find_unused_parameters=True)
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            for step in range(4):
                ddp.module.choice = (step + place.rank) % 2  # ranks use different layers
                optimizer.zero_grad()
                ddp(torch.ones(3, 4) * (place.rank + 1)).square().mean().backward()
                optimizer.step()
            results.append(weights(ddp))
        run.close()
        return results

    same(None, body)


@pytest.mark.parametrize("cap", [0.00001, 25])
def test_unused_parameters_without_the_flag_raise_before_the_step(cap):
    def body(place):
        relaxed = new_ddp(place, model=Branching, bucket_cap_mb=cap)
        optimizer = torch.optim.SGD(relaxed.parameters(), lr=0.1)
        run = pliant.relax(relaxed, optimizer, "allreduce", timeout_s=20)
        before = weights(relaxed)
        relaxed(torch.ones(3, 4)).mean().backward()
        with pytest.raises(pliant.IncompleteBackwardError, match=r"second\.weight.*find_unused_parameters"):
            optimizer.step()
        run.close()
        return torch.equal(before, weights(relaxed))

    assert pliant.run_world(2, body, timeout_s=30) == [True, True]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.hidden = nn.Embedding(11, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.hidden(self.tokens(x)) @ self.tokens.weight.t()


def test_tied_weights():
    def body(place):
        results = []
        plain, relaxed, a, b, run = pair(place, model=Tied)
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            for step in range(4):
                x = torch.randint(0, 11, (5,), generator=torch.Generator().manual_seed(step * 10 + place.rank))
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(x), x).backward()
                optimizer.step()
            results.append(weights(ddp))
        run.close()
        return results

    same(None, body)


def test_batchnorm_buffers_follow_rank_0_as_in_ddp():
    def body(place):
        plain, relaxed, a, b, run = pair(place)
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            train(ddp, optimizer, place.rank, range(3))
            ddp(batch(place.rank, 9)[0])  # a forward pass broadcasts the buffers
        run.close()
        return tuple(torch.cat([t.flatten().double() for t in m.buffers()]) for m in (plain, relaxed))

    same(None, body)


@pytest.mark.parametrize("wraps", [True, False])
def test_a_user_who_says_that_buffers_are_not_broadcast_is_heeded_at_every_switch(wraps):
    """Whatever the plan was when it was said: under one whose ranks differ, nobody broadcasts them anyway."""
    in_small_buckets = replace(plan_of(pliant.local_sgd()), bucket_bytes=2000)

    def body(place):
        given = new_ddp(place)
        given = given.module if wraps else given
        optimizer = torch.optim.SGD(given.parameters(), lr=0.05)
        means, seen = [], []
        with pliant.relax(given, optimizer, "allreduce", group=place.process_group, timeout_s=20) as run:
            for said_under in ("allreduce", "local_sgd"):
                run.model.broadcast_buffers = True
                run.switch(said_under)
                seen.append(bool(run.model.broadcast_buffers))
                run.model.broadcast_buffers = False
                for plan in ("local_sgd", in_small_buckets, "allreduce", "onebit"):
                    run.switch(plan)
                    seen.append(bool(run.model.broadcast_buffers))
                    train(run.model, optimizer, place.rank, range(2))
                means.append(run.model.module.norm.running_mean.clone())
            run.model.broadcast_buffers = True
            run.switch("local_sgd")
            run.switch("allreduce")
            seen.append(run.model.broadcast_buffers)
        assert seen == [True, *[False] * 9, True]
        assert run.model.broadcast_buffers is True
        return means

    assert not any(map(torch.equal, *pliant.run_world(2, body)))


def half(*dtypes):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16).to(d) for d in dtypes)

        def forward(self, x):
            x = x.flatten(1)
            for layer in self.layers:
                x = torch.tanh(layer(x.to(layer.weight.dtype)))
            return x.float()

    return Mixed


@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.bfloat16, torch.float32, torch.float64)])
@pytest.mark.parametrize("what", ["allreduce", "bytegrad"])
def test_bf16_and_mixed_dtypes(dtypes, what):
    def body(place):
        plain, relaxed, a, b, run = pair(place, model=half(*dtypes), what=what)
        train(plain, a, place.rank, range(4))
        train(relaxed, b, place.rank, range(4))
        run.close()
        return [torch.cat([p.detach().double().flatten() for p in m.parameters()]) for m in (plain, relaxed)]

    results = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(results[0][1], results[1][1])
    for plain, relaxed in results:
        if what == "allreduce":
            assert torch.equal(plain, relaxed)
        else:
            torch.testing.assert_close(plain, relaxed, rtol=0, atol=0.02)


def test_clipping_sees_the_averaged_gradient():
    def body(place):
        results = []
        plain, relaxed, a, b, run = pair(place)
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            norms = []
            clip = lambda ddp=ddp, norms=norms: norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.1))  # noqa: E731
            train(ddp, optimizer, place.rank, range(4), before_step=clip)
            results.append(torch.cat([weights(ddp), torch.stack(norms)]))
        run.close()
        return results

    same(None, body)


@pytest.mark.parametrize("what", ["allreduce", "bytegrad", "onebit", "topk", "powersgd", "randomk"])
def test_grad_scaler_skips_the_same_steps(what):
    """An overflow on one rank makes all skip, and the residuals stay finite."""

    def body(place):
        plain, relaxed, a, b, run = pair(place, nonfinite="propagate", what=getattr(pliant, what)())
        scales = []
        for ddp, optimizer in ((plain, a), (relaxed, b)):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
            for step in range(6):
                x, y = batch(place.rank, step)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp(x), y)
                if step == 2 and place.rank == 1:
                    loss = loss * torch.inf
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
        assert run.stats()["steps"] == 5
        assert run.stats()["residual_norm"] < 1e6
        run.close()
        assert scales[:6] == scales[6:]
        return weights(plain), weights(relaxed)

    results = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][1].isfinite().all()
    if what == "allreduce":
        assert torch.equal(*results[0])


def test_a_plain_module_is_wrapped():
    def body(place):
        torch.manual_seed(place.rank)
        module = Net()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        with pliant.relax(module, optimizer, "bytegrad", group=place.process_group) as run:
            train(run.model, optimizer, place.rank, range(3))
        assert isinstance(run.model, DistributedDataParallel)
        return weights(module)

    first, second = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(first, second)


def test_everybody_starts_from_rank_0():
    """Parameters, buffers, optimizer state and its settings."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01 * (place.rank + 1), betas=(0.8, 0.99))
        if place.rank == 0:  # only rank 0 has a past
            for p in ddp.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            optimizer.zero_grad()
            ddp.module.norm.running_mean.fill_(3.0)
        with torch.no_grad():
            ddp.module.head.bias.fill_(place.rank)
        with pliant.relax(ddp, optimizer, "allreduce") as run:
            start = copy.deepcopy(optimizer.state_dict())
            assert run.stats()["steps"] == 1
            train(ddp, optimizer, place.rank, range(2))
        state = [t.flatten() for s in start["state"].values() for t in s.values()]
        settings = torch.tensor([start["param_groups"][0]["lr"]])
        return torch.cat([*state, settings, weights(ddp), ddp.module.norm.running_mean[:1]])

    results = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(results[0][:-1], results[1][:-1])
