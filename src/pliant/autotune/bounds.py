"""Bounds on what a relaxation may do to a training before its plan is rejected."""

import statistics
from collections import deque
from dataclasses import dataclass, fields
from math import inf, isfinite

from pliant.autotune.quality_probe import QualityMetrics

__all__ = ["BoundCheck", "BoundViolation", "QualityBounds"]

_REMEMBERED = 5
"""Windows whose median gradient norm counts as the usual one."""


@dataclass(frozen=True, kw_only=True)
class QualityBounds:
    """Bounds beyond which "auto" rejects a plan: ``Auto(quality=1.1, bounds=QualityBounds(residual=30))``.

    Each is a number above 0; ``math.inf`` switches a bound off. The defaults are far from what healthy trainings show
    (docs/auto.md): a crossed bound means that the measured quality of a plan does not hold here.

    >>> QualityBounds(residual=30).distance
    0.5
    """

    residual: float = 100.0
    """Upper bound of ||residual|| / ||gradient||, per rank. Top-k and random-k at 1 % peak at 4 and 14 in our
    trainings; a gradient that never changes would give 100."""
    error_rise: float = 0.5
    """Upper bound of the rise of codecs' squared error over the squared gradient norm since the plan was adopted,
    without error feedback. An unbiased error of w multiplies the steps to an accuracy by at most 1 + w, where noise
    decides (docs/auto.md); the first error is part of what was measured of the plan."""
    distance: float = 0.5
    """Upper bound of ||change by an exchange|| / ||weights||, per rank, where weights are exchanged: at most 0.3 in our
    trainings, in their first steps. The mean of distant models is no good model, however good each is."""
    gradient_jump: float = 4.0
    """Upper bound of a rank's gradient norm over its median in the five windows before: at most 2 in our trainings.
    Accordion (Agarwal et al., arXiv:2010.16248) relaxes less while the norm changes by half; here a fall is no
    violation, since training makes gradients smaller."""

    def __post_init__(self) -> None:
        wrong = next((each.name for each in fields(self) if not getattr(self, each.name) > 0), None)
        if wrong is not None:
            raise ValueError(
                f"the bound {wrong} is {getattr(self, wrong)}, but what it bounds is never negative; give a number "
                "above 0, or math.inf for no bound."
            )


@dataclass(frozen=True, kw_only=True)
class BoundViolation:
    """Reason for which a plan is rejected: the bound, and a clause with the value."""

    bound: str
    """Name of the bound."""
    why: str
    """A clause with the figure and the bound."""


class BoundCheck:
    """Compares the quality metrics of one rank, window by window, with the bounds."""

    def __init__(self, bounds: QualityBounds) -> None:
        self._bounds = bounds
        self._first_error = 0.0
        self._gradients: deque[float] = deque(maxlen=_REMEMBERED)
        self._crossed: set[str] = set()

    def verdict(self, figures: QualityMetrics) -> BoundViolation | None:
        """Return the violation by a metric beyond its bound in two windows running, or not finite; None without one."""
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
