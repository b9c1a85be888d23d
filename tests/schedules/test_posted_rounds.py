"""Receives that are posted a round ahead: where they may be, where they must not, and that nothing else changes."""

import pytest
import torch

from exchanges import COLLECTIVES, NUMEL
from pliant.comm import CommError, InOrderQueues, run_world
from pliant.comm.wrapped import WrappedComm
from pliant.schedules.posted_rounds import PostedRounds

BY_SCHEDULE = {name: make for name, make in COLLECTIVES.items() if name.startswith("a schedule")}


class Posts(WrappedComm):
    """Notes which peers' receives are posted with which sends; in whichever order it says that it is."""

    def __init__(self, comm, *, is_in_order):
        super().__init__(comm)
        self.order, self.posted = is_in_order, []

    @property
    def is_in_order(self):
        return self.order

    def exchange(self, sends, receives, *, turn=0, tag=0, patience_s=None):
        self.posted.append(([peer for peer, _ in sends], [peer for peer, _ in receives]))
        return self._comm.exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)


def around(comm, num_rounds):
    """Send numbers around a ring, once with each round's sum; return what comes last."""
    size, buffers = comm.size, [torch.zeros(1) for _ in range(num_rounds)]
    posted = PostedRounds(comm, [[((comm.rank - 1) % size, buffer)] for buffer in buffers])
    for _ in range(2):  # as each call of a schedule does, with the same buffers
        x = torch.tensor([float(comm.rank)])
        posted.start()
        for number in range(num_rounds):
            posted.exchange(number, [((comm.rank + 1) % size, x)])
            x = buffers[number] + 1
        posted.end()
    return float(x)


@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("num_rounds", [0, 1, 2, 5])
def test_receives_go_with_the_sends_of_the_round_before(num_rounds, is_in_order):
    def body(place):
        comm = Posts(place.comm, is_in_order=is_in_order)
        return around(comm, num_rounds), comm.posted

    for rank, (came, posts) in enumerate(run_world(3, body)):
        assert came == (rank - num_rounds) % 3 + num_rounds
        to, of = [(rank + 1) % 3], [(rank - 1) % 3]
        ahead = [([], of), *[(to, of)] * (num_rounds - 1), (to, [])] if num_rounds else []
        assert posts == 2 * ([(to, of)] * num_rounds if is_in_order else ahead)


@pytest.mark.parametrize("make", BY_SCHEDULE.values(), ids=BY_SCHEDULE)
def test_sums_are_the_same_to_the_bit(make):
    def body(place):
        found = []
        for is_in_order in (True, False):
            call = make(Posts(place.comm, is_in_order=is_in_order), torch.device("cpu"))
            x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(place.rank))
            call(x)
            found.append(x)
        return found

    for before, ahead in run_world(4, body):
        assert torch.equal(before, ahead)


def test_on_queues_in_order_a_round_ahead_would_wait_for_ever():
    """Why `is_in_order` is asked: the double of NCCL finds the circle."""
    queues = InOrderQueues()

    def body(place):
        with pytest.raises(CommError, match="for ever"):
            around(Posts(queues.wrap(place.comm), is_in_order=False), 2)

    run_world(2, body, timeout_s=3600)
