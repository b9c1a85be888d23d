"""Receives that stand: messages leave at once, results are the same to the bit, and nothing meets what is left."""

import threading

import pytest
import torch

from pliant.codecs import Int4, Sign
from pliant.collectives import CompressedAverage, ShortVectorAverage
from pliant.collectives.standing import StandingReceives
from pliant.comm import CommError, run_world
from pliant.comm.ordered import InOrderComm, InOrderQueues
from pliant.comm.recorded import RecordedComm

CPU = torch.device("cpu")
NUMEL = 5000


def vector(rank, step):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * rank + step))


def averaged(comm, codec, *, steps=4):
    average = CompressedAverage(codec, NUMEL, comm, chunk_bytes=4096, owner_feedback=True, device=CPU)
    residual, found = torch.zeros(NUMEL), []
    for step in range(steps):
        x = vector(comm.rank, step)
        average(x, step, residual)
        found.append(x)
    return torch.stack([*found, residual])


def shortly(comm, numel, *, steps=4):
    average, found = ShortVectorAverage(numel, comm, CPU, in_parts=True), []
    for step in range(steps):
        x = vector(comm.rank, step)[:numel].clone()
        average(x)
        found.append(x)
    return torch.stack(found)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_results_are_those_of_receives_that_do_not_stand(size):
    """Over a comm in order none stands."""
    queues = InOrderQueues()

    def body(place):
        in_order = InOrderComm(place.comm, queues, ("all",))
        pairs = [(averaged(comm, Int4()), shortly(comm, 1001)) for comm in (place.comm, in_order)]
        return [torch.equal(a, b) for a, b in zip(*pairs, strict=True)]

    assert run_world(size, body, timeout_s=60) == [[True, True]] * size


def test_a_message_leaves_before_its_receiver_begins_the_exchange():
    """Without receives that stand the first rank would wait for the second one, and that for the first, for ever."""
    has_left = threading.Event()

    def body(place):
        comm, peer = place.comm, 1 - place.rank
        came = torch.zeros(1000)
        receives = StandingReceives(comm, [[(peer, came)]])
        for step in range(3):
            if place.rank == 1 and step:
                assert has_left.wait(30)
                has_left.clear()
            sent = receives.send([(peer, torch.full((1000,), float(step)))])
            if place.rank == 0 and step:
                sent.wait()  # the other rank has not begun
                has_left.set()
            receives.take().wait()
            assert came.eq(step).all()
            comm.barrier()
            receives.stand()
            comm.barrier()
            sent.wait()

    run_world(2, body, timeout_s=30)


def test_what_is_left_of_a_plan_meets_no_other_message():
    def body(place):
        alone = averaged(place.comm, Sign())
        for codec in (Int4(), Int4()):
            averaged(place.comm, codec, steps=1)  # its receives stand
            shortly(place.comm, 700, steps=1)
        return torch.equal(averaged(place.comm, Sign()), alone)

    assert run_world(3, body, timeout_s=60) == [True] * 3


def test_a_receive_that_stands_is_awaited_once_somebody_waits():
    def body(place):
        comm, peer = RecordedComm(place.comm), 1 - place.rank
        receives = StandingReceives(comm, [[(peer, torch.zeros(10))]])
        receives.stand()
        before = place.comm.progress.told["awaited"][str(peer)], comm.received_bytes
        receives.send([(peer, torch.ones(10))]).wait()
        work = receives.take()
        work.wait()
        work.wait()
        return [*before, place.comm.progress.told["awaited"][str(peer)], comm.received_bytes, comm.calls["expect"]]

    assert run_world(2, body, timeout_s=30) == [[0, 0, 1, 40, 1]] * 2


def test_a_peer_that_has_ended_fails_only_who_waits_for_it():
    ended = threading.Event()

    def body(place):
        comm, peer = place.comm, 1 - place.rank
        other = comm.split([[0, 1]])
        receives = StandingReceives(other, [[(peer, torch.zeros(10))]])
        if place.rank == 1:
            other.close()
            ended.set()
            return ""
        assert ended.wait(30)
        receives.stand()
        receives.stand()  # by now the connection is known to be closed
        with pytest.raises(CommError, match="exchange of 40 bytes failed"):
            receives.take().wait()
        return "told"

    assert run_world(2, body, timeout_s=10) == ["told", ""]


def test_a_tag_is_given_once():
    assert run_world(2, lambda place: [place.comm.new_tag() for _ in range(3)]) == [[16, 17, 18]] * 2
