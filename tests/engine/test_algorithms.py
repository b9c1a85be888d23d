"""What every algorithm must obey when it trains a model."""

from itertools import pairwise, zip_longest

import numpy as np
import pytest
import torch
from torch import nn

import pliant
from models import batch, new_ddp, train, weights
from pliant.algorithms import ALGORITHMS as REGISTRY, executor_for
from pliant.spec import (
    CodecSpec,
    CompressedMomentum,
    LocalSteps,
    Outer,
    RegionServers,
    ScatterGather,
    SyncPlan,
    from_json,
    to_json,
)
from tables import ALGORITHMS, BETWEEN_STEPS, VARIANTS, needs_its_optimizer, optimizer_for, sampled

LOSSLESS = ["delayed", "late-onebit", "onebit", "topk", "blocktopk", "randomk", "int4", "every-exact", "powersgd"]
LOSSLESS += ["tasc", "tasc-leader", "tasc-local"]
FORGETFUL = ("onebit_adam", "decoupled_momentum", "ef21_muon", "dion", "every", "after")
"""Momenta that decay or round, and combinators of the rows that round."""
LOSSLESS += [
    name
    for name, node in ALGORITHMS.items()
    if name in REGISTRY and node.keeps_gradients and name not in (*LOSSLESS, *FORGETFUL)
]
"""What these do not send they still owe; the others round, or forget what the owner's mean loses."""

rows = pytest.mark.parametrize("name", sampled(ALGORITHMS))
all_rows = pytest.mark.parametrize("name", [*ALGORITHMS, *BETWEEN_STEPS])
EVERY_ALGORITHM = {**ALGORITHMS, **BETWEEN_STEPS}


def relax(place, name, **options):
    ddp = new_ddp(place)
    optimizer = optimizer_for(name, ddp.parameters())
    return (
        ddp,
        optimizer,
        pliant.relax(ddp, optimizer, EVERY_ALGORITHM[name], hosts=hosts(place.size), timeout_s=20, **options),
    )


def hosts(size):
    return [list(range(size // 2)), list(range(size // 2, size))] if size > 1 else [[0]]


@rows
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.extended) for size in (2, 4))])
def test_ranks_stay_equal_and_learn(name, size):
    def body(place):
        ddp, optimizer, run = relax(place, name, agreement_every=3)
        with run:
            losses = train(ddp, optimizer, place.rank, [step % 2 for step in range(18)])
            stats = run.stats()
        assert stats["last_agreement_step"] >= 15
        return weights(ddp), losses, stats

    results = pliant.run_world(size, body, timeout_s=60)
    assert all(torch.equal(results[0][0], r[0]) for r in results)
    start, end = (np.mean([np.mean(r[1][part]) for r in results]) for part in (slice(0, 2), slice(-2, None)))
    assert end < start - 0.005


@pytest.mark.parametrize("name", sampled(BETWEEN_STEPS))
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.extended) for size in (2, 4))])
def test_ranks_that_differ_learn_and_end_equal(name, size):
    def body(place):
        ddp, optimizer, run = relax(place, name)
        with run:
            losses = train(ddp, optimizer, place.rank, [step % 2 for step in range(18)])
        return weights(ddp), losses

    results = pliant.run_world(size, body, timeout_s=60)
    assert all(torch.equal(results[0][0], r[0]) for r in results)
    start, end = (np.mean([np.mean(r[1][part]) for r in results]) for part in (slice(0, 2), slice(-2, None)))
    assert end < start - 0.005


@all_rows
def test_one_rank_is_the_plain_optimizer(name):
    core = EVERY_ALGORITHM[name].core
    outer = core.outer if isinstance(core, LocalSteps) else core.region if isinstance(core, RegionServers) else Outer()
    changes_alone = name in ("onebit_adam", "decoupled_momentum", "demo-mean", "acco") or core.replaces_momentum
    if changes_alone or not outer.takes_mean:
        return  # a frozen variance, a momentum, an outer one and pairs of steps act on one rank as well

    def body(place):
        ddp, optimizer, run = relax(place, name)
        with run:
            train(ddp, optimizer, 0, range(5))
            sent = run.stats()["sent_bytes"]
        plain = new_ddp(place)
        train(plain, optimizer_for(name, plain.parameters()), 0, range(5))
        return torch.equal(weights(ddp), weights(plain)) and sent == 0

    assert pliant.run_world(1, body) == [True]


@all_rows
def test_the_plan_names_the_algorithm(name):
    algorithm = EVERY_ALGORITHM[name]
    assert executor_for(algorithm).node == algorithm
    plan = pliant.partition({"*": algorithm})
    assert from_json(SyncPlan, to_json(plan)) == plan


@pytest.mark.parametrize(
    "left_out", [pytest.param(VARIANTS, id="rows"), pytest.param((), id="all", marks=pytest.mark.extended)]
)
def test_switching_among_all_on_one_model(left_out):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, "allreduce", agreement_every=1, hosts=[[0], [1, 2]], timeout_s=20) as run:
            mixed = zip_longest(ALGORITHMS.items(), BETWEEN_STEPS.items())
            for k, (name, algorithm) in enumerate(row for pair in mixed for row in pair if row is not None):
                if needs_its_optimizer(name) or name in left_out:
                    continue
                run.switch(algorithm)
                train(ddp, optimizer, place.rank, range(2 * k, 2 * k + 2))
        return weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(results[0], r) for r in results)
    assert results[0].isfinite().all()


def applied_and_total(plans, hosts=None):
    """Return per rank, over 7 steps, the sum of gradients after the exchange, and of the means before it.

    Plans: Step -> plan from then on; the last one pays what the others owe.
    """

    def body(place):
        ddp = new_ddp(place)
        total, applied = torch.zeros_like(weights(ddp)), torch.zeros_like(weights(ddp))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
        with pliant.relax(ddp, optimizer, plans[0], hosts=hosts, timeout_s=20) as run:
            for step in range(7):
                if step and step in plans:
                    run.switch(plans[step])
                x, y = batch(place.rank, step)
                local = new_ddp(place, bucket_cap_mb=25)
                with local.no_sync():
                    nn.functional.cross_entropy(local(x), y).backward()
                total += torch.cat([p.grad.flatten() for p in local.parameters()])
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(x), y).backward()
                applied += torch.cat([p.grad.flatten() for p in ddp.parameters()])
                optimizer.step()
        place.comm.all_reduce(total).wait()
        return applied, total / place.size

    return pliant.run_world(3, body, timeout_s=60)


@pytest.mark.parametrize("name", sampled(LOSSLESS))
def test_nothing_is_lost_over_rebucketing_and_a_switch(name):
    """Sum of applied updates, plus what is owed, is the sum of the mean gradients: also when the plan changes."""
    for applied, total in applied_and_total({0: ALGORITHMS[name], 6: "allreduce"}):
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hosts", [[[0], [1, 2]], [[0, 1, 2]]], ids=["two", "one"])
@pytest.mark.parametrize("name", sampled(LOSSLESS))
def test_nothing_is_lost_where_hosts_take_over_and_hand_back(name, hosts):
    plans = {0: ALGORITHMS[name], 2: pliant.between_hosts(ALGORITHMS[name]), 4: "onebit", 6: "allreduce"}
    for applied, total in applied_and_total(plans, hosts):
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["qsgd", "qsgd4", "terngrad", "natural"])
def test_steps_and_buckets_round_independently(name):
    """Gradients are the same in every step and bucket: the mean of n errors has an n-th of one's variance."""
    num_steps, numel = 6, 4096

    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.Parameter(torch.zeros(numel)) for _ in range(2))

        def forward(self, x):
            return ((self.one + self.other) * x).sum()

    def body(place):
        ddp = new_ddp(place, model=Twins, bucket_cap_mb=4 * numel / 2**20)
        optimizer = optimizer_for(name, ddp.parameters())
        g = torch.randn(numel, generator=torch.Generator().manual_seed(0))
        errors = []
        with pliant.relax(ddp, optimizer, ALGORITHMS[name], timeout_s=20):
            for _ in range(num_steps):
                optimizer.zero_grad()
                ddp(g).backward()
                errors += [p.grad - g for p in ddp.parameters()]
                optimizer.step()
        return torch.stack(errors)

    errors = pliant.run_world(2, body, timeout_s=60)[0]
    ratio = float(len(errors) * errors.mean(0).square().mean() / errors.square().mean())
    assert 0.8 < ratio < 1.25  # it would be 2 if both buckets drew the same random numbers, 6 if all steps did


@pytest.mark.parametrize("size", [2, 3])
def test_bytegrad_equals_a_numpy_oracle(size):
    """Two quantizations, owners' ranges cut at blocks, one rank's range shorter or empty."""
    numel, block = 5000, 2048

    def quantize(x):
        out = np.empty_like(x)
        for first in range(0, len(x), block):
            b = x[first : first + block].astype(np.float32)
            step = np.float32(b.max() / np.float32(255) - b.min() / np.float32(255))
            low = np.trunc(b.max() * (np.float32(1) / step) + np.float32(0.5)) - 255
            q = np.trunc(np.clip(b * (np.float32(1) / step) - low, 0, 255).astype(np.float32) + np.float32(0.5))
            out[first : first + block] = (q + low) * step
        return out

    def body(place):
        module = nn.Linear(numel, 1, bias=False)
        nn.init.zeros_(module.weight)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        with pliant.relax(module, optimizer, "bytegrad", group=place.process_group) as run:
            g = torch.randn(1, numel, generator=torch.Generator().manual_seed(place.rank))
            run.model(g).sum().backward()
            return g[0].numpy(), module.weight.grad[0].numpy()

    results = pliant.run_world(size, body)
    units = -(-numel // block)
    cuts = [min(numel, j * units // size * block) for j in range(size)] + [numel]
    expected = np.empty(numel, np.float32)
    for owner, (a, b) in enumerate(pairwise(cuts)):
        total = results[owner][0][a:b].copy()
        for rank in range(size):
            if rank != owner and b > a:
                total += quantize(results[rank][0][a:b])
        expected[a:b] = quantize(total / np.float32(size)) if b > a else total
    for _, found in results:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "hosts",
    [
        [[0], [1, 2, 3]],
        *(
            pytest.param(h, marks=pytest.mark.extended)
            for h in ([[0, 1], [2, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]])
        ),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("allreduce", "bytegrad", "powersgd"),
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("onebit", "topk", "randomk")),
    ],
)
def test_hierarchical_is_the_true_mean(hosts, name):
    """Exact: equal to flat. Compressed: near it, and equal on all ranks. Hosts of equal and unequal size."""

    def body(place):
        out = []
        for algorithm in (pliant.allreduce(), pliant.between_hosts(ALGORITHMS[name])):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            with pliant.relax(ddp, optimizer, algorithm, hosts=hosts, timeout_s=20):
                train(ddp, optimizer, place.rank, range(3))
            out.append(weights(ddp))
        return out

    results = pliant.run_world(4, body, timeout_s=60)
    assert all(torch.equal(results[0][1], r[1]) for r in results)
    flat, hierarchical = results[0]
    if name == "allreduce":
        torch.testing.assert_close(flat, hierarchical, rtol=0, atol=1e-6)
    else:
        assert (flat - hierarchical).abs().max() < 0.2


def test_hierarchy_without_hosts_is_refused():
    def body(place):
        ddp = new_ddp(place)
        pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=1.0), pliant.between_hosts(pliant.allreduce()))

    with pytest.raises(ValueError, match="hosts="):
        pliant.run_world(2, body)


def test_onebit_adam_in_warmup_is_adam():
    def body(place):
        ours, theirs = new_ddp(place), new_ddp(place)
        optimizer = pliant.OneBitAdam(ours.parameters(), lr=1e-3, warmup_steps=100)
        with pliant.relax(ours, optimizer, "onebit_adam", timeout_s=20):
            train(ours, optimizer, place.rank, range(10))
        train(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3), place.rank, range(10))
        return weights(ours), weights(theirs)

    for ours, theirs in pliant.run_world(2, body):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-7)


@pytest.mark.parametrize("what", ["allreduce", "local_sgd", "bounded_staleness(0)"])
def test_behind_its_warmup_onebit_adam_takes_no_gradient_for_a_momentum(what):
    def body(place):
        ddp = new_ddp(place)
        optimizer = pliant.OneBitAdam(ddp.parameters(), lr=1e-3, warmup_steps=2)
        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(2))
            before = weights(ddp)
            with pytest.raises(ValueError, match=r"after its 2 warm-up steps .* gradients \(.*switch\(optimizer"):
                train(ddp, optimizer, place.rank, [2])
            assert torch.equal(before, weights(ddp))
            assert run.steps == 2
            run.switch(optimizer.algorithm)
            train(ddp, optimizer, place.rank, range(2, 4))
        return weights(ddp)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(one, other)


def test_onebit_adam_after_warmup_equals_its_oracle():
    """Frozen variance and its correction, momentum of the mean gradient plus feedback: by an exact codec's stand-in."""

    def body(place):
        module = nn.Linear(3, 2, bias=False).double()
        nn.init.ones_(module.weight)
        optimizer = pliant.OneBitAdam(module.parameters(), lr=0.01, weight_decay=0.1, warmup_steps=2)
        exact = CodecSpec(name="minmax8", settings={"block": 1})  # one element a block
        averaging = ScatterGather(codec=exact, feedback="both")
        algorithm = CompressedMomentum(beta=0.9, warmup_steps=2, averaging=averaging)
        gradients = [torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * t + place.rank)) for t in range(5)]
        with pliant.relax(module, optimizer, "allreduce", group=place.process_group) as run:
            run.switch(pliant.allreduce())
            optimizer_algorithm = optimizer.algorithm
            assert optimizer_algorithm.beta == algorithm.beta
            run.switch(algorithm)
            for g in gradients:
                optimizer.zero_grad()
                (run.model.module.weight * 0).sum()
                run.model(torch.eye(3).double())  # a synchronized pass; the gradient is g by construction below
                loss = (run.model(torch.eye(3).double()).t() * g.double()).sum()
                loss.backward()
                optimizer.step()
        return torch.stack(gradients).double(), module.weight.detach()

    results = pliant.run_world(2, body)
    mean = torch.stack([r[0] for r in results]).mean(0)
    p, m, v = torch.ones(2, 3).double(), torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    for t, g in enumerate(mean, start=1):
        m = 0.9 * m + 0.1 * g
        if t <= 2:
            v = 0.999 * v + 0.001 * g * g
        denominator = (v / (1 - 0.999 ** min(t, 2))).sqrt() + 1e-8
        update = m / (1 - 0.9**t) / denominator
        p = p * (1 - 0.01 * 0.1) - 0.01 * (update if t <= 2 else update.clamp(-1, 1))
    for _, found in results:
        torch.testing.assert_close(found, p, rtol=0, atol=1e-5)


def test_momentum_correction_equals_its_oracle():
    """u and v of each rank, masked where they were sent; exact gradients, so only the choice decides."""
    size, numel, num_steps, kept, momentum = 3, 40, 6, 4, 0.9
    gradients = np.stack([np.random.default_rng(rank).standard_normal((num_steps, numel)) for rank in range(size)])

    def body(place):
        module = nn.Linear(numel, 1, bias=False)
        nn.init.zeros_(module.weight)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        what, found = pliant.topk(ratio=kept / numel, momentum=momentum), []
        with pliant.relax(module, optimizer, what, group=place.process_group) as run:
            for g in gradients[place.rank]:
                optimizer.zero_grad()
                run.model(torch.from_numpy(g).float().view(1, -1)).sum().backward()
                found.append(module.weight.grad[0].numpy().copy())
                optimizer.step()
        return found

    u, v = np.zeros((size, numel)), np.zeros((size, numel))
    wanted = []
    for step in range(num_steps):
        u = momentum * u + gradients[:, step]
        v += u
        chosen = np.argsort(-abs(v), axis=1)[:, :kept]
        sent = np.zeros_like(v)
        for rank, at in enumerate(chosen):
            sent[rank, at] = v[rank, at]
            v[rank, at] = u[rank, at] = 0.0
        wanted.append(sent.mean(0))
    for found in pliant.run_world(size, body):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_optimizer_that_does_not_fit_is_refused():
    def body(place):
        ddp = new_ddp(place)
        sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        with pytest.raises(ValueError, match=r"OneBitAdam.*SGD"):
            pliant.relax(ddp, sgd, "onebit_adam")
        with pytest.raises(ValueError, match="count twice"):
            pliant.relax(ddp, sgd, pliant.topk(momentum=0.9))
        with pytest.raises(ValueError, match="decoupled_momentum keeps one of"):
            pliant.relax(ddp, sgd, "decoupled_momentum")
        adam = pliant.OneBitAdam(ddp.parameters(), warmup_steps=5)
        with pytest.raises(ValueError, match="warmup_steps 5"):
            pliant.relax(ddp, adam, CompressedMomentum(beta=0.9, warmup_steps=6))
        with pytest.raises(ValueError, match="no algorithm 'zip'"):
            pliant.relax(ddp, sgd, "zip")
        with pytest.raises(TypeError, match="Optimizer"):
            pliant.relax(ddp, None, "allreduce")

    pliant.run_world(1, body)
    with pytest.raises(ValueError, match="warmup_steps is 0"):
        pliant.OneBitAdam([torch.zeros(1)], warmup_steps=0)


def test_partition_inside_one_bucket_equals_its_parts():
    """Each parameter gets what its own rule says, though DDP puts them in one bucket."""
    plan = pliant.partition(
        {
            pliant.Match(layer="*Norm*"): pliant.allreduce(),
            "hidden.*": pliant.onebit(),
            pliant.Match(max_numel=100): pliant.bf16(),
            "*": pliant.bytegrad(),
        }
    )

    def body(place):
        grads = {}
        for what in ("allreduce", plan):
            ddp = new_ddp(place, bucket_cap_mb=25)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            with pliant.relax(ddp, optimizer, what, timeout_s=20):
                x, y = batch(place.rank, 0)
                nn.functional.cross_entropy(ddp(x), y).backward()
            grads[str(what)] = {n: p.grad.clone() for n, p in ddp.module.named_parameters()}
        return list(grads.values())

    for exact, mixed in pliant.run_world(3, body, timeout_s=60):
        assert torch.equal(exact["norm.weight"], mixed["norm.weight"])
        assert not torch.equal(exact["hidden.weight"], mixed["hidden.weight"])
        assert mixed["hidden.weight"].abs().unique().numel() < 20  # signs times scales
        torch.testing.assert_close(exact["conv.bias"], mixed["conv.bias"], rtol=0.02, atol=1e-4)
        torch.testing.assert_close(exact["back.weight"], mixed["back.weight"], rtol=0, atol=0.01)


def test_the_lane_at_the_end_gives_the_same():
    from dataclasses import replace

    def body(place):
        out = []
        for order in ("ready", "at_end"):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            plan = pliant.partition({"*": pliant.bytegrad()})
            with pliant.relax(ddp, optimizer, replace(plan, order=order), timeout_s=20):
                train(ddp, optimizer, place.rank, range(3))
            out.append(weights(ddp))
        return torch.equal(*out)

    assert pliant.run_world(2, body) == [True, True]


def test_a_bare_name_spares_small_parameters():
    from pliant.engine.plan_resolution import resolve_plan

    for name, row in REGISTRY.items():
        if name == "onebit_adam" or not row.bare:
            continue
        plan = resolve_plan(name, optimizer_for(name, [torch.zeros(1)]))
        small, large = (plan.exchange_for("x", "Linear", numel) for numel in (8192, 8193))
        # powersgd and tasc send small ones whole by themselves; some rows exchange no gradients.
        spared = large.error_feedback != "none" and name not in ("powersgd", "tasc") and large.kind == "gradients"
        assert small == (pliant.allreduce(few_rounds=True) if spared else large)
        assert plan.name == name
