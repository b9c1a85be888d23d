"""Bounds of what a relaxation may do before it is given up."""

import statistics
from collections import deque
from dataclasses import dataclass, fields
from math import inf, isfinite

from pliant.autotune.quality_probe import QualityMetrics

__all__ = ["BoundCheck", "BoundViolation", "QualityBounds"]

_REMEMBERED = 5
"""Windows whose median gradient is what a gradient usually is."""


@dataclass(frozen=True, kw_only=True)
class QualityBounds:
    """Bounds beyond which "auto" gives up a plan: ``pliant.Auto(quality=1.1, bounds=pliant.Bounds(residual=30))``.

    Each is a number above 0, and ``math.inf`` where nobody is to look. All are wide of what healthy trainings show
    (docs/auto.md): crossing one means that what was measured of a plan's quality does not hold any more.
    """

    residual: float = 100.0
    """Norm of what error feedback owes over that of a rank's own gradient. Of 1 % of the elements it comes to 14 at
    most in our trainings; 100 is what it would be if the gradient never changed."""
    error_rise: float = 0.5
    """Squared error of codecs without feedback on a rank's gradient, over its squared norm, above what it was when the
    plan was adopted. An unbiased error of w multiplies the steps to an accuracy by at most 1 + w, where noise decides
    (docs/auto.md), and what was measured of the plan has its first error in it already."""
    distance: float = 0.5
    """Norm of what an exchange changes in a rank's weights over theirs, where weights are exchanged: 0.3 at most in our
    trainings, in their first steps. The mean of models far from each other is no good model, however good each is."""
    gradient_jump: float = 4.0
    """Norm of a rank's gradient over its median in the five windows before: 2 at most in our trainings. Accordion
    (Agarwal et al., arXiv:2010.16248) relaxes less while the norm changes by half; here falls do not count, for they
    are what training is for."""

    def __post_init__(self) -> None:
        wrong = next((each.name for each in fields(self) if not getattr(self, each.name) > 0), None)
        if wrong is not None:
            raise ValueError(
                f"the bound {wrong} is {getattr(self, wrong)}, but what it bounds is never negative; give a number "
                "above 0, or math.inf for no bound."
            )


@dataclass(frozen=True, kw_only=True)
class BoundViolation:
    """Why a plan is given up."""

    bound: str
    """Name of the bound."""
    why: str
    """A clause with the figure and the bound."""


class BoundCheck:
    """Holds what a plan does on one rank, window by window, against bounds."""

    def __init__(self, bounds: QualityBounds) -> None:
        self._bounds = bounds
        self._first_error = 0.0
        self._gradients: deque[float] = deque(maxlen=_REMEMBERED)
        self._crossed: set[str] = set()

    def verdict(self, figures: QualityMetrics) -> BoundViolation | None:
        """Return what is beyond its bound in the second window running, or is not finite; None if nothing is."""
        for bound, value, what in (
            ("residual", figures.residual, "what error feedback owes"),
            ("error_rise", figures.error, "the error of the codecs"),
            ("distance", figures.distance, "what an exchange changed in the weights"),
        ):
            if not isfinite(value):
                return BoundViolation(bound=bound, why=f"{what} was not finite, which no bound allows")
        violation = self._beyond(figures)
        if figures.gradient and "gradient_jump" not in violation:
            self._gradients.append(figures.gradient)
        again = [BoundViolation(bound=name, why=why) for name, why in violation.items() if name in self._crossed]
        self._crossed = set(violation)
        return again[0] if again else None

    def _beyond(self, figures: QualityMetrics) -> dict[str, str]:
        """Return, for each bound that is crossed, a clause that says so."""
        bounds = self._bounds
        self._first_error = self._first_error or figures.error
        rise = figures.error - self._first_error
        # One gradient that is not finite is nothing where a GradScaler feels its way; two windows of them are.
        jump = figures.gradient / statistics.median(self._gradients) if self._gradients else 1.0
        jump = jump if isfinite(figures.gradient) else inf
        rows = (
            ("residual", figures.residual, "what error feedback owes was {} times as long as the gradient"),
            ("error_rise", rise, "the squared error of the codecs was {} above that when the plan was adopted"),
            ("distance", figures.distance, "an exchange changed a rank's weights by {} times their norm"),
            ("gradient_jump", jump, "a rank's gradient was {} times as long as it was before"),
        )
        return {
            name: f"{text.format(f'{value:.3g}')}, twice running, and the bound {name} is {getattr(bounds, name):g}"
            for name, value, text in rows
            if value > getattr(bounds, name)
        }
