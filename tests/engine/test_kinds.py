"""Parameters of every kind: what plain DDP trains to the bit, allreduce does; all others train them too."""

import copy

import pytest
import torch
from kinds import KINDS, Complex, Mixed, NotSparse, Sparse, loss_of, state_of

import pliant
from models import new_ddp
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled, takes_sparse

EVERY_ALGORITHM = {**ALGORITHMS, **BETWEEN_STEPS}
kinds = pytest.mark.parametrize("kind", KINDS)
all_rows = pytest.mark.parametrize("name", sampled(EVERY_ALGORITHM))


def train(ddp, optimizer, rank, steps):
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@kinds
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("cap", [0.00001, 25])
def test_what_ddp_trains_to_the_bit_allreduce_does(kind, size, cap):
    def body(place):
        ends = []
        for relaxed in (False, True):
            ddp = new_ddp(place, model=KINDS[kind], bucket_cap_mb=cap)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            run = pliant.relax(ddp, optimizer, "allreduce", agreement_every=1, timeout_s=20) if relaxed else None
            train(ddp, optimizer, place.rank, range(4))
            if run is not None:
                run.close()
            ends.append(state_of(ddp))
        return ends

    for plain, relaxed in pliant.run_world(size, body, timeout_s=30):
        assert torch.equal(plain, relaxed)


def model_for(name):
    """All kinds in one model; but what feels a curvature feels real weights, and momenta no sparse ones."""
    return {"tasc-curved": Sparse, "tasc-dynamic": Sparse}.get(name, Mixed) if takes_sparse(name) else NotSparse


@all_rows
def test_every_algorithm_trains_every_kind(name):
    """Ranks end equal, and better than they began."""

    def body(place):
        ddp = new_ddp(place, model=model_for(name))
        optimizer = optimizer_for(name, ddp.parameters(), lr=0.3)
        with pliant.relax(ddp, optimizer, EVERY_ALGORITHM[name], hosts=[[0], [1]], agreement_every=5, timeout_s=20):
            losses = train(ddp, optimizer, place.rank, [step % 2 for step in range(16)])
        return state_of(ddp), losses

    results = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(results[0][0], results[1][0])
    start, end = (sum(sum(r[1][part]) for r in results) for part in (slice(0, 2), slice(-2, None)))
    assert end < start - 0.02


@all_rows
def test_sparse_gradients_are_exact_whatever_a_plan_does_with_others(name):
    """Against the mean of the ranks' own, in float64; where weights are exchanged they stay with their rank."""
    algorithm = EVERY_ALGORITHM[name]
    if not takes_sparse(name):
        return  # momenta are refused: see below

    def body(place):
        ddp = new_ddp(place, model=Sparse)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
        table = ddp.module.table.weight
        with pliant.relax(ddp, optimizer, algorithm, hosts=[[0, 1], [2]], agreement_every=0, timeout_s=20):
            found, own = [], []
            for step in range(3):
                loss_of(ddp, place.rank, step).backward()
                assert table.grad.is_sparse
                found.append(table.grad.to_dense().double())
                optimizer.step()
                optimizer.zero_grad()
                alone = new_ddp(place, model=Sparse)
                with alone.no_sync():
                    loss_of(alone, place.rank, step).backward()
                own.append(alone.module.table.weight.grad.to_dense().double())
        return torch.stack(found), torch.stack(own)

    results = pliant.run_world(3, body, timeout_s=60)
    for step in range(3):
        apart = algorithm.exchanges_weights and step >= algorithm.timing.until_step
        groups = [[0, 1, 2]] if not apart else [[0, 1], [2]] if algorithm.averages_in_host else [[0], [1], [2]]
        for group in groups:
            mean = torch.stack([results[rank][1][step] for rank in group]).mean(0)
            for rank in group:
                torch.testing.assert_close(results[rank][0][step], mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("what", ["acco", "bounded_staleness(0)"])
def test_sparse_gradients_of_a_plain_module_are_exchanged_too(what):
    """It is wrapped, where a plan that needs no gradients of others would leave it as it is."""
    first = Sparse()

    def body(place):
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        group, told = {"group": place.process_group, "timeout_s": 20}, "wrap the module in DistributedDataParallel"
        with pliant.relax(model, optimizer, "local_sgd", **group) as run, pytest.raises(ValueError, match=told):
            run.switch(what)
        with pliant.relax(model, optimizer, what, agreement_every=1, **group) as run:
            train(run.model, optimizer, place.rank, range(4))
        return state_of(model)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(one, other)
    assert not torch.equal(one, state_of(first))


def test_what_cannot_be_exact_is_refused_before_the_start():
    def body(place):
        ddp = new_ddp(place, model=Complex)
        with pytest.raises(ValueError, match=r"'mix' is complex, and its algorithm asks for the curvature"):
            pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), pliant.tasc(block=8))
        ddp = new_ddp(place, model=Sparse)
        with pytest.raises(ValueError, match=r"'table\.weight' has sparse gradients .* momenta, which are dense"):
            pliant.relax(ddp, optimizer_for("onebit_adam", ddp.parameters()), EVERY_ALGORITHM["onebit_adam"])
        with pytest.raises(ValueError, match=r"'table\.weight' has sparse gradients .* momenta, which are dense"):
            pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), pliant.ef21_muon())

    pliant.run_world(2, body)


@pytest.mark.parametrize("what", ["allreduce", "onebit", "local_sgd"])
def test_a_sparse_nan_is_named(what):
    def body(place):
        ddp = new_ddp(place, model=Sparse)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        run = pliant.relax(ddp, optimizer, what, timeout_s=20)
        if place.rank == 1 or what == "local_sgd":  # there, a gradient stays with its rank, and so does the error
            ddp.module.table.weight.register_hook(lambda g: g * torch.nan)
        before = state_of(ddp)
        with pytest.raises(pliant.NonFiniteGradientError, match=r"rank [01]: bucket \d+, parameter table\.weight"):
            loss_of(ddp, place.rank, 0).backward()
        run.close()
        return torch.equal(before, state_of(ddp))

    assert pliant.run_world(2, body) == [True, True]
