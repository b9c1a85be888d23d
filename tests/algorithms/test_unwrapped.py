"""What combinators hold."""

import pliant
from pliant.algorithms.base import unwrapped
from pliant.engine.felt import _feeling


def test_combinators_in_each_other_hide_nothing():
    inner = pliant.tasc(0.1)
    assert unwrapped(inner) is inner
    assert unwrapped(pliant.late(pliant.every(2, pliant.algorithms.between_hosts(inner)))) is inner


def test_what_feels_is_found_on_both_sides_of_a_warm_up():
    first, then = pliant.tasc(0.5), pliant.tasc(0.1)
    warm = pliant.after(3, first, then=pliant.every(2, then))
    assert _feeling(pliant.algorithms.between_hosts(warm)) == [first, then]
    assert _feeling(pliant.allreduce()) == []
