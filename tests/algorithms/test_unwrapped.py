"""What combinators hold."""

import pliant
from pliant.algorithms import executor_for
from pliant.algorithms.base import unwrapped
from pliant.engine.felt import _feeling


def test_combinators_in_each_other_hide_nothing():
    inner = pliant.tasc(0.1)
    assert unwrapped(executor_for(inner)).node == inner
    assert unwrapped(executor_for(pliant.late(pliant.every(2, pliant.between_hosts(inner))))).node == inner


def test_what_feels_is_found_on_both_sides_of_a_warm_up():
    first, then = pliant.tasc(0.5), pliant.tasc(0.1)
    warm = pliant.after(3, first, then=pliant.every(2, then))
    assert [found.node for found in _feeling(executor_for(pliant.between_hosts(warm)))] == [first, then]
    assert _feeling(executor_for(pliant.allreduce())) == []
