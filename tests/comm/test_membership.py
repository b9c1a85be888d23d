"""The agreement on who goes on, under a scheduler that may stop, kill or start any rank at any call on the store."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from pliant.comm.membership import MembershipError, MembershipProtocol

SIZE = 4
SILENT_S, REGROUP_S = 3.0, 20.0


class World:
    """A store in memory; before each call on it, the scheduler may let another rank run a whole round."""

    def __init__(self, choose):
        self.data, self.choose, self.now_s, self.depth = {}, choose, 0.0, 0
        self.ranks, self.dead, self.found = [], set(), {}

    def _interleave(self):
        if self.depth < 3 and self.ranks and self.choose(4) == 0:
            self.depth += 1
            self.turn(self.choose(len(self.ranks)))
            self.depth -= 1

    def set(self, key, value):
        self._interleave()
        self.data[key] = value.encode()

    def get(self, key):
        return self.data[key]

    def check(self, keys):
        self._interleave()
        return all(key in self.data for key in keys)

    def compare_set(self, key, expected_value, desired_value):
        self._interleave()
        expected = expected_value.encode() if isinstance(expected_value, str) else expected_value
        if self.data.get(key, b"") == expected:
            self.data[key] = desired_value.encode()
        return self.data[key]

    # - Ranks

    def start(self, rank, size=SIZE, sound=False, **settings):
        settings = {"regroup_s": REGROUP_S, "start_s": 100.0, "silent_s": SILENT_S, **settings}
        agreement = MembershipProtocol(self, rank=rank, size=size, **settings)
        agreement.busy = True  # no round within its own beginning
        agreement.wants = agreement.waits = False
        agreement.entered = set()
        agreement.sound = sound
        self.ranks.append(agreement)
        self.ask(len(self.ranks) - 1)
        return len(self.ranks) - 1

    def ask(self, k, closing=False):
        it = self.ranks[k]
        it.busy = True
        it.announce(step=0, sound=it.sound, closing=closing, now_s=self.now_s)
        it.busy, it.waits = False, True

    def turn(self, k):
        """One round of one rank: it waits for a decision, or, as a member, looks whether its epoch is over."""
        it = self.ranks[k]
        if k in self.dead or it.busy:
            return
        it.busy = True
        it.heartbeat()
        if it.waits:
            epoch = it.poll(self.now_s)
            if epoch is not None:
                assert any(m.life == it.life for m in epoch.members)
                assert self.found.setdefault(epoch.number, epoch) == epoch, "two ranks have read two decisions"
                it.waits, it.sound, it.epoch = False, True, epoch
                it.entered.add(epoch.number)
        elif it.is_over():
            it.announce(step=0, sound=True, closing=False, now_s=self.now_s)
            it.waits = True
        it.busy = False

    def settle(self):
        """Time goes on evenly, and everybody has its turns; return who is a member of the last epoch."""
        for _ in range(200):
            self.now_s += 0.5
            for k in range(len(self.ranks)):
                self.turn(k)
            alive = [it for k, it in enumerate(self.ranks) if k not in self.dead]
            if not any(it.waits or it.is_over() for it in alive):
                break  # nothing would ever change
        assert not any(it.waits for it in alive), "somebody waits for ever"
        return alive


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_all_that_live_end_in_one_epoch(seed):
    order = random.Random(seed)
    world = World(lambda n: order.randrange(n))
    for rank in range(SIZE):
        world.start(rank)
    world.settle()
    for _ in range(order.randint(1, 30)):
        event = order.choice(["turn", "turn", "turn", "kill", "fail", "return", "wait"])
        k = order.randrange(len(world.ranks))
        there = {it.rank for j, it in enumerate(world.ranks) if j not in world.dead}
        if event == "turn":
            world.turn(k)
        elif event == "kill" and len(there) > 1:
            world.dead.add(k)
        elif event == "fail" and k not in world.dead and not world.ranks[k].waits:
            world.ask(k)  # its exchange has failed
        elif event == "return" and world.ranks[k].rank not in there:
            world.start(world.ranks[k].rank)
        elif event == "wait":
            world.now_s += order.choice([0.1, 1.0, SILENT_S, REGROUP_S])
    alive = [it for k, it in enumerate(world.ranks) if k not in world.dead]
    if not any(it.waits for it in alive):
        world.ask(world.ranks.index(alive[0]))  # whoever is lost is found out by the next exchange
    members = world.settle()
    if len(members) < len(members[0].epoch.members):  # one was lost between its word and the decision
        world.ask(world.ranks.index(members[0]))
        members = world.settle()
    assert len({it.epoch.number for it in members}) == 1
    assert {m.life for m in members[0].epoch.members} == {it.life for it in members}
    assert len({m.rank for m in members[0].epoch.members}) == len(members)
    for it in members:
        listed = {e.number for e in world.found.values() if it.life in {m.life for m in e.members}}
        assert listed == it.entered, "the others wait for a rank that has gone past their epoch"


def plain():
    return World(lambda n: 1)


def started(size=3, **settings):
    world = plain()
    for rank in range(size):
        world.start(rank, size=size, **settings)
    world.settle()
    return world


def test_a_silent_rank_is_waited_for_no_longer_than_it_must_be():
    world = started()
    world.dead.add(1)
    world.ask(0)
    begin_s = world.now_s
    while world.ranks[0].waits:
        world.now_s += 0.5
        world.turn(0), world.turn(2)
    assert SILENT_S <= world.now_s - begin_s <= SILENT_S + 1
    assert [m.rank for m in world.ranks[0].epoch.members] == [0, 2]


def test_a_rank_that_lives_but_does_not_come_is_left_behind_and_joins_again():
    world = started()
    world.ask(0)
    begin_s = world.now_s
    while world.ranks[0].waits:
        world.now_s += 0.5
        world.turn(0), world.turn(2), world.ranks[1].heartbeat()
    assert REGROUP_S <= world.now_s - begin_s <= REGROUP_S + 1
    assert len(world.settle()[0].epoch.members) == 3


def test_who_leaves_waits_for_those_that_are_still_in_an_exchange():
    world = started(exchange_s=7.0)
    world.ask(0, closing=True)
    begin_s = world.now_s
    while world.ranks[0].waits:
        world.now_s += 0.5
        world.turn(0), world.ranks[1].heartbeat(), world.ranks[2].heartbeat()
    assert REGROUP_S + 7 <= world.now_s - begin_s <= REGROUP_S + 8


def test_who_leaves_knows_who_has_not_met_the_others():
    world = started()
    zero, one, two = world.ranks
    met = [it.words for it in world.ranks]
    for words in met[:2]:
        words.note_met()
    assert [[m.rank for m in words.not_met()] for words in met] == [[2]] * 3
    last = zero.epoch.members[2]
    assert not met[0].asks_again(last)
    assert not zero.has_lost(last, world.now_s)
    world.now_s += SILENT_S
    one.heartbeat()
    assert zero.has_lost(last, world.now_s)
    two.heartbeat()
    assert not zero.has_lost(last, world.now_s)
    world.ask(2)  # it could not meet them, and tries again
    assert met[0].asks_again(last)
    two.leave()
    assert zero.has_lost(last, world.now_s)
    met[2].note_met()
    assert not met[0].not_met()
    world.settle()
    assert zero.words.not_met() == list(zero.epoch.members), "what was said of another epoch counts in this one"


def test_members_that_hold_a_state_come_first():
    world = started()
    world.dead.add(0)
    world.start(0, size=3)
    members = world.settle()[0].epoch.members
    assert [(m.rank, m.sound) for m in members] == [(1, True), (2, True), (0, False)]


def test_too_few_say_so():
    world = started(min_ranks=3)
    world.dead.add(2)
    world.ask(0)
    with pytest.raises(MembershipError, match=r"2 are left after 20s \(ranks 0, 1\), but min_ranks is 3"):
        world.settle()


def test_an_incomplete_start_says_who_is_missing():
    world = plain()
    world.start(0), world.start(2)
    with pytest.raises(MembershipError, match="ranks 1, 3 had not come"):
        world.settle()


def end_of(world, k):
    """Let time go on until a rank gives up, and leaves as its process does; return its sentence."""
    it = world.ranks[k]
    while True:
        world.now_s += 0.5
        [other.heartbeat() for other in world.ranks if other is not it and other not in gone_of(world)]
        try:
            it.poll(world.now_s)
        except MembershipError as error:
            it.leave()
            return str(error)


def gone_of(world):
    return [it for k, it in enumerate(world.ranks) if k in world.dead or it._own.gone]


def test_who_gives_up_a_start_is_not_named_by_those_that_give_up_later():
    world = plain()
    world.start(1, size=3), world.start(2, size=3, start_s=110.0)
    assert "after 100s rank 0 had not come (here: 1, 2);" in end_of(world, 0)
    assert "after 110s rank 0 had not come (here: 2; rank 1 had come and ended again);" in end_of(world, 1)


def test_who_falls_silent_at_the_start_is_named():
    world = plain()
    world.start(0, size=3), world.start(1, size=3)
    world.dead.add(1)
    assert "rank 2 had not come and rank 1 gave no sign of life any more (here: 0);" in end_of(world, 0)


def test_who_leaves_a_start_to_which_all_have_come_is_named():
    world = plain()
    world.start(0, size=2)
    world.start(1, size=2)
    world.ranks[1].leave()
    assert "after 100s rank 1 had come and ended again (here: 0);" in end_of(world, 0)


def test_who_has_given_up_a_start_may_come_again():
    world = plain()
    world.start(1, size=3), world.start(2, size=3, start_s=200.0)
    end_of(world, 0)
    world.dead.add(0)
    world.start(0, size=3)
    world.start(1, size=3)
    assert [m.rank for m in world.settle()[0].epoch.members] == [0, 1, 2]


def test_a_rank_that_comes_stays_in_the_epoch_that_is_decided_while_it_looks():
    """Between its two looks, at the list and at who is where, the others decide, and it is on the list."""
    world = started()
    world.dead.add(2)
    world.ask(0)
    world.settle()
    k = world.start(2, size=3)
    world.turn(k)
    world.ranks[0].heartbeat(), world.ranks[1].heartbeat()
    world.turn(k)  # knows now that both live
    world.turn(0), world.turn(1)
    number, looks = world.ranks[k].number, []

    class Between(type(world)):
        def check(self, keys):
            if keys == ["rank 0"] and looks == [f"members {number}"]:
                self.turn(0), self.turn(1)
            looks.extend(key for key in keys if key.startswith("members"))
            return super().check(keys)

    world.__class__ = Between
    world.turn(k)
    assert world.ranks[0].epoch.number == number
    world.settle()
    assert {it.epoch.number for it in world.ranks if not it.waits and it is not world.ranks[2]} == {number}


def test_who_comes_after_the_end_is_told_so():
    world = started()
    world.ranks[0].finalize()
    with pytest.raises(MembershipError, match="too late"):
        world.start(1, size=3)
