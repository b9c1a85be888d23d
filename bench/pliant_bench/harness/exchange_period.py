"""After how many steps a plan begins anew, and so how many are measured at a time. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pliant.spec import Exchange

__all__ = ["ExchangePeriod", "HasPeriod", "period_of", "steps_of_a_turn", "uncounted_steps"]

_ENOUGH_S, _MOST_STEPS = 0.8, 16
"""A turn takes whole periods: as many as begin within so much time, or within so many steps."""


class HasPeriod(Protocol):
    """An arm that exchanges in periods."""

    @property
    def steps_made(self) -> int:
        """Steps since its first."""
        ...

    @property
    def period(self) -> int:
        """Steps after which it has done everything that it ever does."""
        ...

    @property
    def spacing(self) -> int:
        """Steps from one exchange to the next, of whatever part of the model."""
        ...

    @property
    def delay_steps(self) -> int:
        """Steps that are made before the result of an exchange is waited for."""
        ...


@dataclass(kw_only=True)
class ExchangePeriod:
    """Period of a plan, and the place in it; see `HasPeriod`."""

    period: int
    spacing: int
    delay_steps: int
    steps_made: int = 0


def period_of(nodes: Sequence[Exchange]) -> ExchangePeriod:
    """Return the rhythm of a plan's exchanges; without any, each step is like the other."""
    timings = [node.timing for node in nodes]
    period = max([1, *(timing.period for timing in timings)])
    return ExchangePeriod(
        period=period,
        spacing=period // max([1, *(timing.fragments for timing in timings)]),
        delay_steps=max([0, *(timing.delay_steps for timing in timings)]),
    )


def uncounted_steps(what: HasPeriod) -> int:
    """Return how many steps come before a turn: one, or more, until no result of a late exchange is waited for.

    Otherwise an exchange that begins with the last steps of a turn would be waited for after it, in no turn at all.
    Where one begins in every step, as many are waited for as begin.
    """
    if what.spacing <= what.delay_steps:
        return 1
    return next(n for n in range(1, what.spacing + 1) if (what.steps_made + n) % what.spacing >= what.delay_steps)


def steps_of_a_turn(what: HasPeriod, step_s: float) -> int:
    """Return whole periods, at least two steps."""
    wanted = min(max(_ENOUGH_S / step_s, 2.0), float(_MOST_STEPS))
    return math.ceil(wanted / what.period) * what.period
