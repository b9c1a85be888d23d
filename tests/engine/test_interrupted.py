"""Ctrl-C in the midst of a step: the run can be closed, the model relaxed again, and nothing is left behind."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore

import pliant
from models import Net, train, weights
from pliant.comm import ProcessGroupComm
from pliant.engine.comm_thread import TaskHandle
from pliant.engine.executor import ExecutorBuilder
from pliant.engine.unused_parameters import UnusedParameterCheck
from pliant.engine.weight_exchange import WeightExchange


@pytest.fixture
def world_of_one():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def interrupt(*_, **__):
    raise KeyboardInterrupt


def ours():
    return {t for t in threading.enumerate() if t.name.startswith("pliant")}


def once(monkeypatch, owner, name):
    """Let a call be interrupted, the first time."""
    real, done = getattr(owner, name), []

    def call(*args, **kwargs):
        if not done:
            done.append(True)
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


IN_STEPS = {
    "the user's loss": ("onebit", None, None),
    "waiting in backward": ("onebit", TaskHandle, "wait"),
    "an exchange": ("onebit", pliant.engine.gradient_exchange.GradientExchange, "stages"),
    "a bucket": ("onebit", pliant.engine.gradient_exchange.GradientExchange, "layout_of"),
    "before a step": ("onebit", UnusedParameterCheck, "require_complete"),
    "after a step": ("local_sgd", WeightExchange, "after_step"),
    "new weights": ("sharded_optimizer", pliant.engine.owner_step.OwnerStep, "share"),
}


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("ends", ["close", "goes on"])
@pytest.mark.parametrize("where", IN_STEPS)
def test_an_interrupted_step_leaves_a_run_that_closes(monkeypatch, where, ends):
    what, owner, name = IN_STEPS[where]
    before = ours()
    ddp = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    run = pliant.relax(ddp, optimizer, what, agreement_every=0)
    train(ddp, optimizer, 0, range(2))
    with monkeypatch.context() as patch:
        if owner is not None:
            once(patch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            train(ddp, optimizer, 0, range(2, 3), before_step=interrupt if owner is None else lambda: None)
    if ends == "goes on":
        train(ddp, optimizer, 0, range(3, 5))
    run.close()
    assert ours() <= before
    with pliant.relax(ddp, optimizer, "bytegrad") as run:
        train(ddp, optimizer, 0, range(5, 7))
        assert run.stats()["exchanges"] == 2
    assert ours() <= before
    assert weights(ddp).isfinite().all()


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("where", ["making", "attaching", "closing", "draining"])
def test_an_interrupted_beginning_or_end_leaves_nothing(monkeypatch, where):
    before = ours()
    ddp = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    owner, name = {
        "making": (ExecutorBuilder, "make"),
        "attaching": (ProcessGroupComm, "with_timeout"),
        "closing": (WeightExchange, "hand_back"),
        "draining": (pliant.engine.comm_thread.CommThread, "drain"),
    }[where]

    def begin_and_end(patch):
        if where in ("making", "attaching"):
            once(patch, owner, name)
        run = pliant.relax(ddp, optimizer, "local_sgd")
        train(ddp, optimizer, 0, range(2))
        once(patch, owner, name)
        run.close()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        begin_and_end(patch)
    assert ours() <= before
    with pliant.relax(ddp, optimizer, "bytegrad") as run:
        train(ddp, optimizer, 0, range(2, 4))
        assert run.steps == 2
    assert ours() <= before
