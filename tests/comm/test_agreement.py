"""A value is the same on all ranks, or all ranks raise."""

import pytest

import pliant
from pliant.comm.agreement import require_same


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
