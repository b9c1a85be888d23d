"""A step in which gradients came but no bucket did raises at that very step, and nothing else does."""

import pytest
import torch
from held import OVER_ALGORITHMS, STEPS, backward, batch, ddp, one, relaxed, scaled, simple, small, with_closure
from torch import nn

import pliant
from tables import ALGORITHMS, BETWEEN_STEPS


def ddp_of(module, place):
    return nn.parallel.DistributedDataParallel(module, process_group=place.process_group)


def wrong(place, model, called, name, loop, optimizers_of=one):
    """Train by calling what relax() does not exchange; return the error and how far the weights have moved."""
    optimizers = optimizers_of(name, model)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    run = relaxed(place, model, optimizers, name)
    with pytest.raises(pliant.IncompleteBackwardError, match="the relaxed model was not called") as caught:
        loop(called, optimizers, place.rank, 1)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    run.__exit__(RuntimeError, RuntimeError("given up"), None)
    return str(caught.value), float(moved.norm()), run


NEEDS_BUCKETS = [name for name, algorithm in ALGORITHMS.items() if not algorithm.steps_beside]
NEEDS_BUCKETS += ["post_local_sgd", "pier", "des_loc-warm", "between-hosts"]
SIGNED = {name for name, algorithm in ALGORITHMS.items() if getattr(algorithm.core, "signed", False)}
"""What a GradScaler's step is refused with, whichever module is called (test_loss_scale.py)."""


@OVER_ALGORITHMS
@pytest.mark.parametrize("loop", [simple, scaled, with_closure])
def test_the_wrong_module_is_found_in_step_1(loop, names):
    """Gradients came, no bucket did, and it was not inside of no_sync: said before the weights move."""

    def body(place):
        for name in [name for name in names if name in NEEDS_BUCKETS and not (loop is scaled and name in SIGNED)]:
            module = small()
            said, moved, run = wrong(place, module, module, name, loop)
            assert "call run.model" in said, name
            assert moved == 0, name
            model = ddp(place)
            said, moved, _ = wrong(place, model, model.module, name, loop)
            assert "call the DistributedDataParallel that relax() was given" in said, name
            assert moved == 0, name
            del run

    pliant.run_world(2, body, timeout_s=60)


@pytest.mark.extended
def test_where_gradients_stay_any_module_may_be_called():
    def body(place):
        for name in sorted({*ALGORITHMS, *BETWEEN_STEPS} - set(NEEDS_BUCKETS)):
            model = ddp(place)
            optimizers = one(name, model)
            with relaxed(place, model, optimizers, name):
                simple(model.module, optimizers, place.rank, STEPS)

    pliant.run_world(2, body, timeout_s=60)


def test_gradients_that_nobody_steps_with_are_no_reason_to_raise():
    """A look at the module's own gradients, wiped out before DDP is called; and steps without any gradient."""

    def body(place):
        for wipe in (True, False):
            model = ddp(place)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            with pliant.relax(model, optimizer, "onebit", timeout_s=20) as run:
                backward(model.module, place.rank, 0)
                optimizer.zero_grad()
                if wipe:
                    optimizer.step()
                simple(model, [optimizer], place.rank, 1)
                optimizer.zero_grad()
                optimizer.step()
                model(batch(place.rank, 1)[0])  # with gradients enabled, and never used
                simple(model, [optimizer], place.rank, 1)
                assert run.stats()["exchanges"] == 2

    pliant.run_world(2, body, timeout_s=60)


def test_steps_inside_no_sync_are_the_users_own():
    """Local steps by hand, as DDP takes them: only those outside are exchanged."""

    def body(place):
        model = ddp(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with pliant.relax(model, optimizer, "allreduce", timeout_s=20, agreement_every=0) as run:
            with model.no_sync():
                simple(model, [optimizer], place.rank, 2)
            simple(model, [optimizer], place.rank, 1)
            assert (run.stats()["steps"], run.stats()["exchanges"]) == (3, 1)

    pliant.run_world(2, body, timeout_s=60)


def test_lbfgs_calls_its_closure_often():
    def body(place):
        ends = []
        for relax in (False, True):
            model = ddp(place)
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
            run = pliant.relax(model, optimizer, "allreduce", timeout_s=20) if relax else None
            for step in range(2):

                def closure(step=step, model=model, optimizer=optimizer):
                    optimizer.zero_grad()
                    x, y = batch(place.rank, step)
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            if run is not None:
                assert run.steps == 2
                run.close()
            ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        with pytest.raises(ValueError, match="LBFGS needs a closure"):
            pliant.relax(model, optimizer, "sharded_optimizer", timeout_s=20)
        return ends

    for one_end, other in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(one_end, other)


@pytest.mark.parametrize("name", ["bf16", "onebit", "local_sgd(2)", "gossip", "bounded_staleness"])
def test_a_parameter_that_is_trained_only_later_is_refused(name):
    def body(place):
        module = small()
        frozen = next(module.parameters()).requires_grad_(False)
        model = ddp_of(module, place)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, name, timeout_s=30) as run:
            simple(model, [optimizer], place.rank, STEPS)
            frozen.requires_grad_()
            before = torch.cat([p.detach().flatten() for p in module.parameters()])
            for p in module.parameters():  # as after a backward pass, which DDP gives it no part in
                p.grad = torch.ones_like(p)
            with pytest.raises(pliant.IncompleteBackwardError, match="nothing exchanges, since they were frozen"):
                optimizer.step()
            assert torch.equal(before, torch.cat([p.detach().flatten() for p in module.parameters()]))
            frozen.requires_grad_(False)
            frozen.grad = None
            optimizer.zero_grad()
            simple(model, [optimizer], place.rank, 1)
            assert run.steps == STEPS + 1

    pliant.run_world(2, body, timeout_s=60)


@pytest.mark.parametrize("wraps", [True, False])
def test_a_parameter_that_is_frozen_later_is_refused_with_a_cure_that_fits(wraps):
    """To look for unused ones is none where relax() has made the DDP, and costs each pass a look where it has not."""
    told = "before DistributedDataParallel wraps the module" if wraps else r"before relax\(\) is called"

    def body(place):
        module, group = small(), None if wraps else place.process_group
        model = ddp_of(module, place) if wraps else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, "onebit", group=group, timeout_s=30) as run:
            simple(run.model, [optimizer], place.rank, 1)
            module.first.requires_grad_(False)
            before = torch.cat([p.detach().flatten() for p in module.parameters()])
            with pytest.raises(pliant.IncompleteBackwardError, match=f"2 parameters were frozen after relax.*{told}"):
                simple(run.model, [optimizer], place.rank, 1)
        assert torch.equal(before, torch.cat([p.detach().flatten() for p in module.parameters()]))

    pliant.run_world(2, body, timeout_s=60)
