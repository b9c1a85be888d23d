"""A run ends: closed or not, held or not, whatever came first; and copies of what it relaxes do nothing."""

import copy
import gc
import os
import pickle
import threading
import time
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore

import pliant
from models import Net, batch, new_ddp, train, weights
from pliant.comm import ProcessGroupComm
from pliant.engine.comm_thread import CommThread
from pliant.engine.run import Run
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled
from waiting import dawdle, until

ALL = ALGORITHMS | BETWEEN_STEPS
OURS = (Run, CommThread, ProcessGroupComm)
EARLIER_THREADS = set()


def left(kinds=OURS):
    while gc.collect():  # what DDP's reducer held, the collector sees only when that is gone
        pass
    # Not isinstance: torch has objects that warn when they are asked.
    return [type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds)]


@pytest.fixture(autouse=True)
def _before():
    """Hide what is there from the collector: runs of other tests that are still ending are not this one's."""
    global EARLIER_THREADS
    EARLIER_THREADS = set(threading.enumerate())
    gc.freeze()
    yield
    gc.unfreeze()


def threads_left(within_s=20.0):
    """Return the names of Pliant's threads that have not ended by then."""
    deadline_s = time.monotonic() + within_s
    ours = [t for t in threading.enumerate() if t.name.startswith("pliant") and t not in EARLIER_THREADS]
    for thread in ours:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]


@pytest.mark.parametrize("name", sampled(ALL))
def test_a_run_that_nobody_keeps_trains_and_ends_with_its_model(name):
    """The hooks hold it; copies, as for averaged weights, exchange nothing; and it leaves no thread and no object."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        hosts = [[0], [1]]
        run = weakref.ref(pliant.relax(ddp, optimizer, ALL[name], timeout_s=20, hosts=hosts))
        gc.collect()
        train(ddp, optimizer, place.rank, range(2))
        if place.rank == 0:  # alone: an exchange would wait for ever
            averaged = copy.deepcopy(ddp.module)
            x, y = batch(0, 0)
            nn.functional.cross_entropy(averaged(x), y).backward()
            assert pickle.loads(pickle.dumps(ddp.module)).state_dict().keys() == averaged.state_dict().keys()
            assert pickle.loads(pickle.dumps(optimizer)).state_dict().keys() == optimizer.state_dict().keys()
            copy.deepcopy(optimizer).step()
        train(ddp, optimizer, place.rank, range(2, 4))
        assert run().steps == 4
        place.comm.barrier()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        pliant.run_world(2, body, timeout_s=30)
        until(lambda: not left((Run,)), lambda: left((Run,)))  # an exchange that is in flight ends first
        assert not threads_left()
        assert left((Run, CommThread)) == []
    assert sum("was never closed" in str(each.message) for each in told) == 2


def open_files():
    return len(os.listdir("/proc/self/fd"))


def settled(count, most):
    """Return a count once it is at most so many: Gloo closes sockets in threads of its own."""
    for _ in range(200):
        if (now := count()) <= most:
            break
        dawdle(0.02)
    return now


def test_cycles_of_open_train_switch_and_close_leave_nothing():
    """Threads, open files, objects and tensors after six cycles are those after two."""
    plans = [
        "allreduce",
        "onebit",
        pliant.bounded_staleness(1),
        pliant.local_sgd(2),
        pliant.between_hosts(pliant.gossip()),
    ]

    def cycle(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, plans[0], timeout_s=20, hosts=[[0], [1]]) as run:
            for what in plans[1:]:
                train(ddp, optimizer, place.rank, range(2))
                run.switch(what)
            train(ddp, optimizer, place.rank, range(2))

    def count():
        pliant.run_world(2, cycle, timeout_s=30)
        assert not threads_left()
        assert left() == []
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    count()
    tensors, files, threads = count(), open_files(), len(os.listdir("/proc/self/task"))
    assert [count() for _ in range(4)] == [tensors] * 4
    assert settled(open_files, files) <= files
    assert settled(lambda: len(os.listdir("/proc/self/task")), threads) <= threads


@pytest.mark.parametrize("name", sampled(ALL))
def test_steps_leave_no_objects_behind(name):
    """From step 8 to step 32, which is four exchanges or more, the garbage collector comes to know no more tensors."""
    meet = threading.Barrier(2)  # which has no tensors itself

    def body(place):
        ddp = new_ddp(place, model=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 5)))
        optimizer = optimizer_for(name, ddp.parameters())
        found = []
        with pliant.relax(ddp, optimizer, ALL[name], timeout_s=20, hosts=[[0], [1]]) as run:
            for steps in (range(8), range(8, 32)):
                train(ddp, optimizer, place.rank, steps)
                run.state_dict()  # nothing is in flight, and all ranks are between the same two steps
                meet.wait(timeout=250)
                if place.rank == 0:
                    gc.collect()
                    found.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
                meet.wait(timeout=250)
        return found

    tensors, more_tensors = pliant.run_world(2, body, timeout_s=30)[0]
    assert more_tensors < tensors + 4  # a thread that has just ended an exchange may hold one or two


@pytest.fixture
def world_of_one():
    """Torch's default world, with this process as its only rank: what is refused elsewhere can be copied there."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(
    "name", ["allreduce", "onebit", "tasc-curved", "local_sgd", "sharded_optimizer", "bounded_staleness"]
)
def test_what_plain_ddp_can_copy_and_save_a_relaxed_one_can(name, tmp_path):
    ddp = nn.parallel.DistributedDataParallel(Net())
    optimizer = optimizer_for(name, ddp.parameters())
    with pliant.relax(ddp, optimizer, ALL[name]) as run:
        train(ddp, optimizer, 0, range(2))
        torch.save(ddp, tmp_path / "ddp.pt")
        copies = [
            copy.deepcopy(ddp),
            pickle.loads(pickle.dumps(ddp)),
            torch.load(tmp_path / "ddp.pt", weights_only=False),
        ]
        before = run.stats()["exchanges"], weights(ddp).clone()
        for each in copies:
            assert torch.equal(weights(each), before[1])
            train(each, torch.optim.SGD(each.parameters(), lr=0.05), 0, range(2, 4))
        assert (run.stats()["exchanges"], run.steps) == (before[0], 2)
        assert torch.equal(weights(ddp), before[1])
        assert torch.equal(weights(copies[0]), weights(copies[1]))
        train(ddp, optimizer, 0, range(2, 3))
        assert run.steps == 3
    with pliant.relax(copies[0], torch.optim.SGD(copies[0].parameters(), lr=0.05), "onebit") as run:
        train(copies[0], run.optimizer, 0, range(2))
        assert run.stats()["exchanges"] == 2


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(("what", "loses"), [("onebit", False), ("local_sgd", True), ("sharded_optimizer", True)])
def test_a_world_destroyed_before_close_is_one_sentence(what, loses):
    ddp = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    run = pliant.relax(ddp, optimizer, what)
    train(ddp, optimizer, 0, range(2))
    dist.destroy_process_group()
    if loses:
        with pytest.raises(
            RuntimeError, match=r"destroy_process_group\(\) was called before close\(\).*left as they are"
        ):
            run.close()
    else:
        with pytest.warns(RuntimeWarning, match=r"destroy_process_group\(\) was called before close\(\)"):
            run.close()
    run.close()  # a second call does nothing
    assert not threads_left()
    assert not optimizer._optimizer_step_pre_hooks


class OwnError(Exception):
    """What a user's code raises."""


@pytest.mark.parametrize("kind", [OwnError, KeyboardInterrupt])
def test_an_error_in_the_block_waits_for_nobody(kind):
    """Rank 0 has an exchange in flight to which rank 1 never comes, and a timeout of an hour: it hangs up instead."""
    sent_ahead = pliant.local_sgd(1, delay_steps=1)
    ended = threading.Event()

    def fail(model, optimizer, **settings):
        with pliant.relax(model, optimizer, sent_ahead, timeout_s=3600, agreement_every=0, **settings):
            train(model, optimizer, 0, range(1))
            raise kind

    def body(place):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if place.rank == 0:
            with pytest.raises(kind):
                fail(model, optimizer, group=place.process_group)
            ended.set()
            return
        run = pliant.relax(model, optimizer, sent_ahead, group=place.process_group, agreement_every=0)
        assert ended.wait(100)
        with pytest.raises(pliant.CommError):
            train(model, optimizer, place.rank, range(3))
        run.__exit__(OwnError, OwnError(), None)

    pliant.run_world(2, body, timeout_s=3600)
    assert not threads_left()
