"""Between hosts and racks: what cannot be there says so at once."""

import pytest

import pliant
from pliant.spec import AllReduce


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (pliant.between_hosts(pliant.allreduce()), "inner has a BetweenHosts already, but hosts are one level"),
        (pliant.between_hosts(pliant.local_sgd(4)), "hosts are one level; above it are racks"),
        (pliant.decoupled_diloco(quorum=2), "inner must have no quorum, got 2, for which each rank's period counts"),
        (pliant.bounded_staleness(), "the ranks of a host add up the gradients of one step, got ParameterServer"),
    ],
)
def test_what_cannot_be_between_hosts(algorithm, sentence):
    with pytest.raises(ValueError, match=sentence):
        pliant.between_hosts(algorithm)


INT4, LOCAL = pliant.int4(), pliant.local_sgd(4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: pliant.between_racks(pliant.between_hosts(INT4)), r"racks hold hosts; write BetweenHosts\(inner=Bet"),
        (lambda: pliant.between_racks(pliant.between_racks(INT4)), "inner has a BetweenRacks already, but racks are"),
        (lambda: pliant.between_racks(AllReduce(schedule="auto")), "links are measured between hosts only"),
        (lambda: pliant.between_hosts(pliant.between_racks(LOCAL)), "must not exchange weights between racks"),
        (lambda: pliant.between_racks(pliant.sharded_optimizer()), "inner must not have owners, since they hold parts"),
        (lambda: pliant.every(2, pliant.between_hosts(pliant.sharded_optimizer())), "inner must not have owners"),
        (
            lambda: pliant.after(2, pliant.between_hosts(INT4), then=pliant.between_racks(INT4)),
            "must have the same levels, or one of them none, got host first and rack then",
        ),
    ],
)
def test_racks_are_the_outer_level(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_levels_are_read_from_the_inside_out():
    three = pliant.between_hosts(pliant.between_racks(INT4))
    assert (
        three.levels == pliant.every(2, three).levels == pliant.local_sgd(2, averaging=three).levels == ("host", "rack")
    )
    assert pliant.between_racks(LOCAL).levels == ("rack",)
    assert pliant.after(2, three, then=pliant.onebit()).levels == ("host", "rack")
    assert pliant.allreduce().levels == ()
