"""Stale synchronous parallel, without tensors and network: under any order of events the bound holds and all end."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from pliant.collectives import StalenessClock


class World:
    """Ranks and owners with a network in which messages between two of them keep their order, and nothing else does."""

    def __init__(self, size, owners, staleness, steps, seed):
        self.random = random.Random(seed)
        self.size, self.staleness, self.steps = size, staleness, steps
        self.clocks = [StalenessClock(size, staleness) for _ in range(owners)]
        self.questions = {(r, o): [] for r in range(size) for o in range(owners)}  # on their way
        self.pending = {}  # (rank, owner) -> epoch: asked, not answered
        self.answers = {(r, o): 0 for r in range(size) for o in range(owners)}  # arrived, not taken
        self.done = [0] * size  # steps of a rank
        self.asked = [0] * size  # owners whose answer a rank has not taken
        self.left = [False] * size
        self.ended = [False] * size
        self.applied = [0] * owners

    def ask(self, rank, kind):
        for owner in range(len(self.clocks)):
            self.questions[rank, owner].append(kind)
        self.asked[rank] = len(self.clocks)

    def take(self, rank):
        """Take all answers; False if one is missing."""
        if self.asked[rank] and any(self.answers[rank, o] == 0 for o in range(len(self.clocks))):
            return False
        if self.asked[rank]:
            for o in range(len(self.clocks)):
                self.answers[rank, o] -= 1
        self.asked[rank] = 0
        return True

    def advance(self, rank):
        """Let a rank do what it can: the protocol of the one who computes."""
        if self.ended[rank] or (self.left[rank] and not self.take(rank)):
            return False
        if self.left[rank]:
            self.ended[rank] = True
            return True
        if (self.staleness > 0 or self.done[rank] == self.steps[rank] or self.asked[rank]) and not self.take(rank):
            return False
        if self.done[rank] == self.steps[rank]:
            self.left[rank] = True
            self.ask(rank, "leave")
            return True
        self.done[rank] += 1
        self.ask(rank, "push")
        # What it computes next, it computes with the answer just taken (s > 0), or with the next (s = 0).
        computing = self.done[rank] if self.staleness else self.done[rank] - 1
        seen = [c.clocks[r] for c in self.clocks for r in range(self.size) if not self.left[r]]
        assert computing - min(seen) <= self.staleness
        return True

    def deliver(self, rank, owner):
        if (rank, owner) in self.pending or not self.questions[rank, owner]:
            return False
        clocks = self.clocks[owner]
        kind = self.questions[rank, owner].pop(0)
        self.pending[rank, owner] = clocks.epoch
        due = clocks.push(rank) if kind == "push" else clocks.leave(rank)
        self.applied[owner] += due
        assert 0 <= clocks.waiting < max(1, clocks.left.count(False))
        return True

    def answer(self, rank, owner):
        if (rank, owner) not in self.pending or not self.clocks[owner].may_read(rank, self.pending[rank, owner]):
            return False
        del self.pending[rank, owner]
        self.answers[rank, owner] += 1
        return True

    def run(self):
        ranks, owners = range(self.size), range(len(self.clocks))
        actions = [(self.advance, (r,)) for r in ranks]
        actions += [(act, (r, o)) for act in (self.deliver, self.answer) for r in ranks for o in owners]
        while not all(self.ended):
            self.random.shuffle(actions)
            assert any(act(*where) for act, where in actions), "nobody can go on"


@settings(max_examples=300)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.integers(0, 1 << 30),
)
def test_no_order_of_events_breaks_the_bound_or_stops_the_world(size, owners, staleness, steps, seed):
    world = World(size, owners, staleness, steps[:size], seed)
    world.run()
    assert world.applied == [sum(steps[:size])] * owners
    for clocks in world.clocks:
        assert clocks.epoch == 1
        assert clocks.waiting == 0
        assert clocks.clocks == [0] * size


def test_staleness_zero_is_lockstep():
    clocks = StalenessClock(3, 0)
    assert [clocks.push(0), clocks.push(2)] == [0, 0]
    assert not clocks.may_read(0, 0)
    assert clocks.push(1) == 3
    assert all(clocks.may_read(rank, 0) for rank in range(3))


def test_a_rank_is_answered_up_to_its_bound_and_slow_ones_do_not_hold_up_steps():
    clocks = StalenessClock(2, 3)
    steps = 0
    for clock in range(1, 4):
        steps += clocks.push(0) > 0
        assert clocks.may_read(0, 0) == (clock <= 2)  # the answer to 3 is for the step after the fourth gradient
    assert steps == 1
    clocks.push(1)
    assert clocks.may_read(0, 0)
    assert clocks.slowest == 1


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="staleness of -1"):
        StalenessClock(2, -1)
