"""A vote over the store of a process group: all texts, or None when somebody does not come."""

import threading

import pytest
import torch.distributed as dist

import pliant
from pliant.comm import ballot


@pytest.fixture
def one_store(monkeypatch):
    """Give every group of a world of threads one store, since torch keeps none for them."""
    store = dist.HashStore()
    monkeypatch.setattr(ballot, "store_of", lambda group: store)


def test_every_rank_gets_the_texts_of_all(one_store):
    votes = pliant.run_world(3, lambda place: ballot.collect_votes(place.process_group, "run", "no" * place.rank, 20))
    assert votes == [["", "no", "nono"]] * 3


def test_a_rank_that_does_not_come_costs_the_others_the_timeout_and_nothing_else(one_store):
    def body(place):
        if place.rank == 1:
            return "absent"
        return ballot.collect_votes(place.process_group, "run", "", 0.05)

    assert pliant.run_world(2, body) == [None, "absent"]


def test_a_rank_that_comes_when_the_others_have_gone_on_goes_on_as_they_do(one_store):
    gone_on = threading.Event()

    def body(place):
        if place.rank == 1:
            assert gone_on.wait(20)
            return ballot.collect_votes(place.process_group, "run", "", 20)
        votes = ballot.collect_votes(place.process_group, "run", "", 0.05)
        gone_on.set()
        return votes

    assert pliant.run_world(2, body) == [None, None]


def test_votes_of_other_names_do_not_mix(one_store):
    def body(place):
        first = ballot.collect_votes(place.process_group, "one", f"a{place.rank}", 20)
        return first, ballot.collect_votes(place.process_group, "two", f"b{place.rank}", 20)

    assert pliant.run_world(2, body) == [(["a0", "a1"], ["b0", "b1"])] * 2
