"""The order of NCCL: each rank has one queue per communicator, and all that is asked of it must come to an end.

Each collective and each algorithm is carried out over queues in order, and must give what it gives over Gloo, to the
bit. The double finds a deadlock when it begins, so that no test waits for one.
"""

import pytest
import torch

import pliant
from exchanges import COLLECTIVES, NUMEL
from models import new_ddp, train, weights
from pliant.comm import CommError, InOrderQueues, RecordedComm, run_world
from pliant.engine import run_start
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

SIZES = pytest.mark.parametrize("size", [2, 3, 4, 5, *(pytest.param(n, marks=pytest.mark.extended) for n in (7, 8))])


def results(make, size, wrap):
    """Return each rank's vector after three calls; receives stand over Gloo before the third, and never in order."""

    def body(place):
        call = make(wrap(place.comm), torch.device("cpu"))
        x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(place.rank))
        for _ in range(3):
            call(x)
        return x

    return run_world(size, body, timeout_s=20)


@pytest.mark.parametrize("make", COLLECTIVES.values(), ids=COLLECTIVES)
@SIZES
def test_collectives_end_in_order_and_equal_gloo(make, size):
    in_order, usual = results(make, size, InOrderQueues().wrap), results(make, size, lambda comm: comm)
    assert all(map(torch.equal, in_order, usual))


def trained(what, size, monkeypatch, wrap):
    """Return each rank's weights after some steps, all communication of the run going through `wrap`."""
    monkeypatch.setattr(run_start, "RecordedComm", lambda comm: RecordedComm(wrap(comm)))

    def body(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(what, ddp.parameters())
        halves = [list(range(size // 2)), list(range(size // 2, size))]
        algorithm = {**ALGORITHMS, **BETWEEN_STEPS}[what]
        with pliant.relax(ddp, optimizer, algorithm, hosts=halves, timeout_s=20):
            train(ddp, optimizer, place.rank, range(4))
        return weights(ddp)

    return run_world(size, body, timeout_s=60)


SERVED = {
    "delayed_nesterov",
    "decoupled_diloco",
    "bounded_staleness",
    "stale-free",
    "stale-coded",
    "async_average",
    "gossip-free",
    "choco-free",
    "halos",
    "halos-alone",
}
"""Threads hear questions and calls at any time, beside what they send: their messages lie in host memory, for Gloo."""


@pytest.mark.parametrize("what", sampled(name for name in {**ALGORITHMS, **BETWEEN_STEPS} if name not in SERVED))
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.extended) for size in (2, 4, 5))])
def test_algorithms_end_in_order_and_equal_gloo(what, size, monkeypatch):
    in_order = trained(what, size, monkeypatch, InOrderQueues().wrap)
    assert in_order[0].isfinite().all()
    assert all(map(torch.equal, in_order, trained(what, size, monkeypatch, lambda comm: comm)))


def wait_for(works):
    for work in works:
        work.wait()


def test_a_receive_before_its_send_is_found_at_once():
    queues = InOrderQueues()

    def body(place):
        comm, peer = queues.wrap(place.comm), 1 - place.rank
        received = comm.exchange([], [(peer, torch.empty(4))])
        sent = comm.exchange([(peer, torch.ones(4))], [])
        with pytest.raises(CommError) as caught:
            wait_for([received, sent])
        return str(caught.value)

    for rank, said in enumerate(run_world(2, body, timeout_s=3600)):
        assert f"rank {rank}: exchange failed: ranks would wait for each other for ever" in said
        assert "rank 0 is in its operation 1, exchange, until it has message 1 from rank 1 to rank 0" in said
        assert "rank 1 is in its operation 1, exchange, until it has message 1 from rank 0 to rank 1" in said


def test_a_circle_over_three_ranks_and_a_collective_is_found():
    queues = InOrderQueues()

    def body(place):
        comm, x = queues.wrap(place.comm), torch.zeros(4)
        right, left = (place.rank + 1) % 3, (place.rank - 1) % 3
        if place.rank == 2:
            works = [comm.all_reduce(x), comm.exchange([(right, x)], [(left, x.clone())])]
        else:
            works = [comm.exchange([(right, x)], [(left, x.clone())]), comm.all_reduce(x)]
        with pytest.raises(CommError, match=r"for ever.*all_reduce \(collective 1\)"):
            wait_for(works)

    run_world(3, body, timeout_s=3600)


def test_a_circle_over_two_communicators_is_found():
    """Each rank waits in another communicator for what the other will ask for later."""
    queues = InOrderQueues()

    def body(place):
        first, second = queues.wrap(place.comm), queues.wrap(place.comm)
        for comm in (first, second):
            comm.all_reduce(torch.zeros(1)).wait()
        mine, other = (first, second) if place.rank == 0 else (second, first)
        with pytest.raises(CommError, match="for ever"):
            wait_for(comm.all_reduce(torch.zeros(1)) for comm in (mine, other))  # asks only when the first has ended

    run_world(2, body, timeout_s=3600)


def test_messages_must_have_the_size_of_their_room():
    queues = InOrderQueues()

    def body(place):
        comm, peer = queues.wrap(place.comm), 1 - place.rank
        comm.exchange([(peer, torch.zeros(3))], [(peer, torch.zeros(4))]).wait()

    with pytest.raises(ValueError, match=r"has 3 elements of torch.float32, but there is room for 4"):
        run_world(2, body, timeout_s=3600)
