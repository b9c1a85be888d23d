"""A value is the same on all ranks, or all ranks raise."""

import pytest
import torch

import pliant
from pliant.comm import RecordedComm, small_gather
from pliant.comm.agreement import require_all_same, require_same
from pliant.comm.small_gather import gather_small
from pliant.comm.wrapped import WrappedComm


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("other", ["another", 7, None])
def test_all_ranks_raise_if_one_differs_or_has_failed(odd, other):
    def body(place):
        with pytest.raises(ValueError, match=r"the plan of ranks .* differs from that of rank 0 .*; ask anew\."):
            require_same(place.comm, "the plan", other if place.rank == odd else "one", cure="ask anew")
        require_same(place.comm, "the plan", "one")  # and go on together

    pliant.run_world(3, body, timeout_s=20)


def test_if_all_have_failed_all_raise():
    def body(place):
        with pytest.raises(OddError, match="of ranks 0, 1 "):
            require_same(place.comm, "the plan", None, error=OddError)

    pliant.run_world(2, body, timeout_s=20)


class OddError(ValueError):
    """What a caller may ask to be raised."""


class InOrder(WrappedComm):
    """A comm whose calls run one after another."""

    is_in_order = True


@pytest.mark.parametrize("most", [1, 26])
@pytest.mark.parametrize("in_order", [False, True])
def test_few_numbers_are_gathered_in_the_order_of_ranks_in_one_round_or_around_a_ring(monkeypatch, most, in_order):
    monkeypatch.setattr(small_gather, "MOST_STRAIGHT_PEERS", most)

    def body(context):
        comm = RecordedComm(InOrder(context.comm) if in_order else context.comm)
        found = gather_small(comm, torch.tensor([context.rank, 10 * context.rank], dtype=torch.int64))
        return found.tolist(), comm.sent_bytes

    for found, sent in pliant.run_world(3, body):
        assert found == [[0, 0], [1, 10], [2, 20]]
        assert sent == 2 * 16


def test_of_several_values_the_first_that_differs_is_named_with_its_cure():
    def body(context):
        values = [("the hat", 1, "wear one"), ("the coat", context.rank == 2, "take mine"), ("the shoe", None, "run")]
        with pytest.raises(ValueError, match=r"the coat of ranks 2 differs from that of rank 0 .*; take mine"):
            require_all_same(context.comm, values)
        return True

    assert pliant.run_world(3, body) == [True] * 3
