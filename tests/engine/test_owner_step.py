"""Owners: equal to an all-reduce and the plain optimizer, with the optimizer's state divided."""

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp, train, weights

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    # eps: the gradient of a bias before BatchNorm is rounding alone, which Adam would blow up
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4, weight_decay=0.1),
}
sizes = pytest.mark.parametrize("size", [2, 3, 4, pytest.param(8, marks=pytest.mark.extended)])
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


@sizes
@optimizers
@pytest.mark.parametrize("clip", [False, True])
def test_equals_an_all_reduce_and_the_plain_optimizer(size, optimizer, clip):
    """With torch's own clip_grad_norm_ as well: stand-ins have the norms of what is elsewhere."""

    def body(place):
        found = []
        for what in ("sharded_optimizer", "allreduce"):
            ddp = new_ddp(place)
            made = OPTIMIZERS[optimizer](ddp.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.97)
            norms = []

            def clip_it(ddp=ddp, norms=norms):
                if clip:
                    norms.append(float(nn.utils.clip_grad_norm_(ddp.parameters(), 0.3)))

            with pliant.relax(ddp, made, what, timeout_s=20, agreement_every=0) as run:
                for step in range(6):
                    train(ddp, made, place.rank, [step], before_step=clip_it)
                    schedule.step()
                sent = run.stats()["sent_bytes"]
            found.append((weights(ddp).clone(), norms, sent))
        return found

    results = pliant.run_world(size, body, timeout_s=60)
    for (owned, norms, _), (exact, exact_norms, _) in results:
        torch.testing.assert_close(owned, exact, rtol=1e-4, atol=2e-5)
        assert norms == pytest.approx(exact_norms, rel=1e-4)
        assert torch.equal(owned, results[0][0][0])
    owned, exact = (sum(r[k][2] for r in results) for k in (0, 1))
    numel, tensors = results[0][0][0].numel(), 10
    # All ranks gather norms of 8 bytes, as many from each as from the owner of most parts, bucket by bucket.
    gathered, rest = divmod(owned - 6 * 2 * (size - 1) * 4 * numel, 8 * (size - 1) * size)
    assert rest == 0
    assert 6 <= gathered <= 6 * tensors
    assert owned == pytest.approx(exact, rel=0.03)
    sent = [r[0][2] for r in results]
    assert max(sent) <= 1.05 * sum(sent) / size


@optimizers
def test_optimizer_state_lies_with_owners_and_is_whole_at_the_end(optimizer):
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS[optimizer](ddp.parameters())
        with pliant.relax(ddp, made, "sharded_optimizer", timeout_s=20):
            train(ddp, made, place.rank, range(3))
            tensors = [x for state in made.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
            held = sum(x.numel() for x in tensors if x.dim())
        shapes = [(tuple(p.shape), made.state[p]) for p in ddp.parameters()]
        whole = all(x.shape == shape for shape, state in shapes for x in state.values() if x.dim())
        return held, sum(p.numel() for p in ddp.parameters()), whole, made.state_dict()["state"]

    results = pliant.run_world(3, body, timeout_s=60)
    total = results[0][1] * (1 if optimizer == "sgd" else 2)
    assert sum(r[0] for r in results) == total
    assert max(r[0] for r in results) <= 1.05 * total / 3
    for _, _, whole, state in results:
        assert whole
        for key, own in results[0][3].items():
            assert all(torch.equal(own[k], state[key][k]) for k in own)


@optimizers
def test_save_load_continue_with_optimizer_state(optimizer, tmp_path):
    """The run's state brings owners' optimizer state back, though relax() gives all ranks rank 0's."""

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS[optimizer](ddp.parameters())
        with pliant.relax(ddp, made, "sharded_optimizer", timeout_s=20) as run:
            train(ddp, made, place.rank, range(4))
            saved = {"model": ddp.module.state_dict(), "optimizer": made.state_dict(), "run": run.state_dict()}
            torch.save(saved, tmp_path / f"{place.rank}.pt")
            train(ddp, made, place.rank, range(4, 8))
        loaded = torch.load(tmp_path / f"{place.rank}.pt", weights_only=True)
        again = new_ddp(place, seed=5)
        again.module.load_state_dict(loaded["model"])
        other = OPTIMIZERS[optimizer](again.parameters())
        other.load_state_dict(loaded["optimizer"])
        with pliant.relax(again, other, "sharded_optimizer", timeout_s=20) as run:
            run.load_state_dict(loaded["run"])
            train(again, other, place.rank, range(4, 8))
        return torch.equal(weights(ddp), weights(again))

    assert pliant.run_world(3, body, timeout_s=60) == [True] * 3


@optimizers
def test_switching_moves_the_optimizer_state(optimizer):
    def body(place):
        found = []
        for plans in (
            [
                "sharded_optimizer",
                pliant.sharded_optimizer(bandwidths=(1.0, 5.0, 2.0)),
                pliant.sharded_optimizer(cut="rows", owners=(2, 0)),
                "allreduce",
                pliant.bounded_staleness(0, max_bytes=512),
                pliant.sharded_optimizer(cut="whole"),
            ],
            ["allreduce"] * 6,
        ):
            ddp = new_ddp(place)
            made = OPTIMIZERS[optimizer](ddp.parameters())
            with pliant.relax(ddp, made, plans[0], timeout_s=20) as run:
                for k, plan in enumerate(plans):
                    run.switch(plan)
                    train(ddp, made, place.rank, range(2 * k, 2 * k + 2))
            found.append(weights(ddp).clone())
        return found

    for owned, exact in pliant.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(owned, exact, rtol=1e-4, atol=2e-5)


def test_a_gradient_that_is_not_finite_is_seen_by_all():
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        before = weights(ddp).clone()
        with pliant.relax(ddp, made, "sharded_optimizer", timeout_s=20):
            x, y = torch.randn(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
            x[0] = float("nan") if place.rank == 1 else 0.0
            with pytest.raises(pliant.NonFiniteGradientError, match="rank 1"):
                nn.functional.cross_entropy(ddp(x), y).backward()
        return torch.equal(weights(ddp), before)

    assert pliant.run_world(3, body, timeout_s=60) == [True] * 3


def test_with_a_scaler_all_ranks_skip_the_same_step():
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with pliant.relax(ddp, made, "sharded_optimizer", nonfinite="propagate", timeout_s=20) as run:
            for step in range(4):
                x, y = torch.randn(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
                made.zero_grad()
                loss = scaler.scale(nn.functional.cross_entropy(ddp(x), y))
                if step == 2 and place.rank == 1:
                    loss = loss * float("inf")
                loss.backward()
                scaler.step(made)
                scaler.update()
            return run.stats()["steps"], weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    assert [r[0] for r in results] == [3] * 3
    assert all(torch.equal(r[1], results[0][1]) for r in results)


def test_what_owners_cannot_do_is_refused():
    for nonsense, why in (
        (lambda: pliant.every(2, pliant.sharded_optimizer()), "invalid Every: inner must not have owners"),
        (lambda: pliant.delayed(pliant.sharded_optimizer()), "invalid Delayed: inner must not have owners"),
        (lambda: pliant.between_racks(pliant.sharded_optimizer()), "invalid BetweenRacks: inner must not have owners"),
        (lambda: pliant.between_hosts(pliant.bounded_staleness()), "invalid BetweenHosts: inner must not let ranks be"),
        (lambda: pliant.after(3, pliant.allreduce(), then=pliant.sharded_optimizer()), r"switch\(\)"),
        (lambda: pliant.after(3, pliant.sharded_optimizer(), then=pliant.onebit()), r"switch\(\)"),
        (lambda: pliant.bounded_staleness(-1), "staleness must be at least 0, got -1"),
        (
            lambda: pliant.partition({"a": pliant.bounded_staleness(1), "*": pliant.allreduce()}).hash,
            "steps of their own",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            nonsense()

    def body(place):
        ddp = new_ddp(place)
        with pytest.raises(ValueError, match="3 bandwidths, but there are 2 ranks"):
            pliant.relax(ddp, OPTIMIZERS["sgd"](ddp.parameters()), pliant.sharded_optimizer(bandwidths=(1.0, 2.0, 3.0)))

    pliant.run_world(2, body)
