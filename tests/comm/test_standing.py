"""Receives that stand: messages leave at once, and what is left of a plan, or of a rank, hangs nobody.

That results are the same to the bit without them is one of the laws of order (`tests/laws/test_order.py`).
"""

import threading

import pytest
import torch

from exchanges import COLLECTIVES, NUMEL
from pliant.codecs import TopK
from pliant.collectives import NeighborAverage, SparseAverage
from pliant.comm import CommError, InOrderQueues, run_world
from pliant.comm.recorded import RecordedComm
from pliant.comm.standing import StandingReceives
from pliant.comm.works import AllWorks
from pliant.comm.wrapped import WrappedComm
from pliant.spec import Graph

CPU = torch.device("cpu")
STAND = (
    "compressed, Sign(block=32)",
    "to owners, standing",
    "from owners, standing",
    "short",
    "short in parts",
    "sparse",
    "ring of neighbours",
    "pairs of neighbours",
    "coded neighbours",
    "a schedule",
    "a schedule in codes",
)


class Posts(WrappedComm):
    """Counts receives that were posted and for which nobody has waited, and notes what was posted one after another."""

    def __init__(self, comm, *, is_in_order=False):
        super().__init__(comm)
        self.order, self.posted, self.num_waiting = is_in_order, [], 0

    @property
    def is_in_order(self):
        return self.order

    def exchange(self, sends, receives, **more):
        self.posted.append(("send", [peer for peer, _ in sends], [peer for peer, _ in receives]))
        return self._comm.exchange(sends, receives, **more)

    def expect(self, receives, **more):
        self.posted.append(("expect", [], [peer for peer, _ in receives]))
        self.num_waiting += len(receives)
        return _Awaited(self, self._comm.expect(receives, **more), len(receives))


class _Awaited:
    def __init__(self, comm, work, count):
        self.comm, self.work, self.count = comm, work, count

    def wait(self):
        self.comm.num_waiting -= self.count
        self.count = 0
        self.work.wait()


def vector(rank):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))


def called(call, rank, times):
    x = vector(rank)
    for _ in range(times):
        call(x)
    return x


@pytest.mark.parametrize("name", STAND)
def test_what_comes_again_stands_and_what_is_left_meets_no_other_message(name):
    """None stands before a second call, and as many after the third; another one of the kind gives the same."""

    def body(place):
        comm = Posts(place.comm)
        call = COLLECTIVES[name](comm, CPU)
        x, counts = vector(place.rank), []
        for _ in range(3):
            call(x)
            counts.append(comm.num_waiting)
        again = called(COLLECTIVES[name](comm, CPU), place.rank, 3)
        return torch.equal(x, again), counts

    found = run_world(3, body, timeout_s=60)
    assert all(same for same, _ in found)
    first, second, third = (sum(counts[k] for _, counts in found) for k in range(3))
    assert first == 0 or "neighbours" in name  # each of whose calls is several exchanges
    assert 0 < second == third


def around(comm, num_rounds, turns=2):
    """Send numbers around a ring; return what comes last."""
    size, buffers = comm.size, [torch.zeros(1) for _ in range(num_rounds)]
    receives = StandingReceives(comm, [[((comm.rank - 1) % size, buffer)] for buffer in buffers])
    for _ in range(turns):
        x = torch.tensor([float(comm.rank)])
        for k in range(num_rounds):
            receives.exchange([((comm.rank + 1) % size, x)], k).wait()
            x = buffers[k] + 1
        receives.stand()
    return float(x)


@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("num_rounds", [0, 1, 2, 5])
def test_receives_of_a_round_are_posted_before_the_sends_of_the_round_before(num_rounds, is_in_order):
    """Those of the first round stand once the exchange has come again."""

    def body(place):
        comm = Posts(place.comm, is_in_order=is_in_order)
        return around(comm, num_rounds, 3), comm.posted

    for rank, (came, posted) in enumerate(run_world(3, body)):
        assert came == (rank - num_rounds) % 3 + num_rounds
        to, of = [(rank + 1) % 3], [(rank - 1) % 3]
        if is_in_order:
            assert posted == [("send", to, of)] * 3 * num_rounds
            continue
        expects, sends = ("expect", [], of), ("send", to, [])
        later = [expects, sends] * (num_rounds - 1) + [sends] if num_rounds else []
        first = [expects, *later] if num_rounds else []
        assert posted == [*first, *first, *([expects, *later, expects] if num_rounds else [])]


def test_on_queues_in_order_a_round_ahead_would_wait_for_ever():
    """Why `is_in_order` is asked: the double of NCCL finds the circle."""
    queues = InOrderQueues()

    def body(place):
        with pytest.raises(CommError, match="for ever"):
            around(Posts(queues.wrap(place.comm)), 2)

    run_world(2, body, timeout_s=3600)


def twice(comm, receives, peer, numel=10):
    """Exchange twice, so that receives may stand; return what sends something."""
    x = torch.ones(numel)
    for _ in range(2):
        receives.exchange([(peer, x)]).wait()
    return lambda: receives.send([(peer, x)])


def test_a_message_leaves_before_its_receiver_begins_the_exchange():
    """Without receives that stand the first rank would wait for the second one, and that for the first, for ever."""
    has_left = threading.Event()

    def body(place):
        comm, peer = place.comm, 1 - place.rank
        receives = StandingReceives(comm, [[(peer, torch.zeros(1000))]])
        send = twice(comm, receives, peer, 1000)
        receives.stand()
        comm.barrier()
        if place.rank == 1:
            assert has_left.wait(30)
        sent = send()
        if place.rank == 0:
            sent.wait()  # the other rank has not begun
            has_left.set()
        AllWorks(receives.take(), sent).wait()

    run_world(2, body, timeout_s=30)


def test_a_receive_that_stands_is_awaited_once_somebody_waits():
    def body(place):
        comm, peer = RecordedComm(place.comm), 1 - place.rank
        receives = StandingReceives(comm, [[(peer, torch.zeros(10))]])
        send = twice(comm, receives, peer)

        def counts():
            return [place.comm.progress.told["awaited"][str(peer)], comm.received_bytes, comm.calls["expect"]]

        receives.stand()
        before = counts()
        send().wait()
        work = receives.take()
        work.wait()
        work.wait()
        return before, counts()

    assert run_world(2, body, timeout_s=30) == [([2, 80, 2], [3, 120, 3])] * 2


def test_an_exchange_that_may_stand_is_one_communication():
    def body(place):
        comm, peer = RecordedComm(place.comm), 1 - place.rank
        receives = StandingReceives(comm, [[(peer, torch.zeros(10))]])
        begun = []
        for _ in range(3):
            receives.exchange([(peer, torch.ones(10))]).wait()
            receives.stand()
            comm.all_reduce(torch.ones(1)).wait()
            begun.append(comm.num_begun)
        return begun

    assert run_world(2, body, timeout_s=30) == [[2, 4, 6]] * 2


def test_a_peer_that_has_ended_fails_only_who_waits_for_it():
    """It ends though it keeps receives that stand, which would hold its connections; and nobody can wait for these."""
    ended = threading.Event()

    def body(place):
        comm, peer = place.comm, 1 - place.rank
        other = comm.split([[0, 1]])
        receives = StandingReceives(other, [[(peer, torch.zeros(10))]])
        twice(other, receives, peer)
        if place.rank == 1:
            receives.stand()
            comm.barrier()
            other.close()
            ended.set()
        else:
            comm.barrier()
            assert ended.wait(30)
            receives.stand()
            receives.stand()  # by now the connection is known to be closed
        standing = receives.take()
        with pytest.raises(CommError, match="exchange of 40 bytes failed") as caught:
            standing.wait()
        with pytest.raises(CommError) as again:  # what never came is not done
            standing.wait()
        assert str(again.value) == str(caught.value)
        assert again.value.lost == caught.value.lost
        return "Timed out" in str(caught.value)

    assert run_world(2, body, timeout_s=10) == [False, False]


@pytest.mark.parametrize("kind", ["ring", "matching"])
def test_receives_of_another_step_are_given_up_where_a_state_is_loaded(kind):
    def mixed(comm, steps):
        x = vector(comm.rank)
        average = NeighborAverage(Graph(kind=kind), NUMEL, comm, dtype=x.dtype, device=CPU)
        for step in steps:
            average(x, step)
        return x

    steps = [3, 4, 5, 0, 1, 2, 3, 7]
    usual = run_world(4, lambda place: mixed(place.comm, steps), timeout_s=30)
    in_order = run_world(4, lambda place: mixed(Posts(place.comm, is_in_order=True), steps), timeout_s=30)
    assert all(map(torch.equal, usual, in_order))


@pytest.mark.parametrize("make", [COLLECTIVES["sparse"], COLLECTIVES["ring of neighbours"], COLLECTIVES["a schedule"]])
def test_a_rank_that_fails_alone_hangs_nobody(make):
    """Its receives stand, and so do those of the others, who wait for it."""
    told = []

    def body(place):
        call = make(place.comm, CPU)
        x = called(call, place.rank, 2)
        if place.rank == 2:
            raise KeyError("boom")
        try:
            call(x)
            call(x)
        except CommError as error:
            told.append(str(error))

    with pytest.raises(KeyError, match="boom"):
        run_world(3, body, timeout_s=3600)
    assert len(told) == 2
    assert not [text for text in told if "Timed out" in text]


def test_a_gather_of_another_size_leaves_nothing_of_the_first():
    """As where the ratio changes: exchanges are made anew, and the bytes are those of the payloads."""

    def body(place):
        comm, sent = RecordedComm(place.comm), []
        for ratio in (0.01, 0.02, 0.01):
            codec = TopK(ratio=ratio)
            average, out = SparseAverage(codec, NUMEL, comm, CPU), torch.empty(NUMEL)
            comm.reset()
            for _ in range(3):
                average(out, vector(place.rank), 1)
            sent.append((comm.sent_bytes - 3 * 2 * codec.nbytes(NUMEL), comm.received_bytes - comm.sent_bytes))
        return sent

    assert run_world(3, body, timeout_s=30) == [[(0, 0)] * 3] * 3


def test_a_tag_is_given_once():
    assert run_world(2, lambda place: [place.comm.new_tag() for _ in range(3)]) == [[16, 17, 18]] * 2
