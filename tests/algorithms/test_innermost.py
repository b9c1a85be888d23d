"""What combinators hold."""

import pliant
from pliant.algorithms import executor_for
from pliant.algorithms.base import innermost
from pliant.engine.curvature_requests import _curvature_users


def test_combinators_in_each_other_hide_nothing():
    inner = pliant.tasc(0.1)
    assert innermost(executor_for(inner)).node == inner
    assert innermost(executor_for(pliant.delayed(pliant.every(2, pliant.between_hosts(inner))))).node == inner


def test_what_feels_is_found_on_both_sides_of_a_warm_up():
    first, then = pliant.tasc(0.5), pliant.tasc(0.1)
    warm = pliant.after(3, first, then=pliant.every(2, then))
    assert [found.node for found in _curvature_users(executor_for(pliant.between_hosts(warm)))] == [first, then]
    assert _curvature_users(executor_for(pliant.allreduce())) == []
