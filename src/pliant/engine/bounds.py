"""How far a relaxation may go before it is given up."""

import statistics
from collections import deque
from dataclasses import dataclass, fields
from math import inf, isfinite

from pliant.engine.figures import Figures

__all__ = ["Bounds", "Judge", "Verdict"]

_REMEMBERED = 5
"""Windows whose median gradient is what a gradient usually is."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where "auto" gives up a plan that is not exact: ``pliant.Auto(quality=1.1, bounds=pliant.Bounds(residual=30))``.

    Each is a number above 0, and ``math.inf`` where nobody is to look. All are wide of what healthy trainings show
    (docs/auto.md): crossing one means that what was measured of a plan's quality does not hold any more.
    """

    residual: float = 100.0
    """Norm of what error feedback owes over that of a rank's own gradient. A codec that keeps a share d of the energy
    may come to 2 sqrt(1 - d) / d (Karimireddy et al., arXiv:1901.09847, Lemma 3), in practice to far less."""
    error_growth: float = 2.0
    """Squared error of the codecs on a rank's gradient over its squared norm, as multiple of what it was when the plan
    was adopted: the steps that a plan needs were measured at an error like that."""
    distance: float = 0.1
    """Norm of what an exchange changes in a rank's weights over theirs, where weights are exchanged. Means of models
    that are far from each other are no good models, however low the loss of each."""
    gradient_jump: float = 4.0
    """Norm of a rank's gradient over its median in the five windows before. Accordion (Agarwal et al.,
    arXiv:2010.16248) relaxes less while the norm changes by half; falls are what training is for, and do not count."""

    def __post_init__(self) -> None:
        wrong = next((each.name for each in fields(self) if not getattr(self, each.name) > 0), None)
        if wrong is not None:
            raise ValueError(
                f"the bound {wrong} is {getattr(self, wrong)}, but what it bounds is never negative; give a number "
                "above 0, or math.inf for no bound."
            )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a plan is given up."""

    bound: str
    """Name of the bound."""
    why: str
    """A clause with the figure and the bound."""


class Judge:
    """Holds what a plan does, window by window, against bounds. The same on all ranks, given the same figures."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._first_error = 0.0
        self._gradients: deque[float] = deque(maxlen=_REMEMBERED)
        self._crossed: set[str] = set()

    def verdict(self, figures: Figures) -> Verdict | None:
        """Return what is beyond its bound in the second window running, or is not finite; None if nothing is."""
        for bound, value, what in (
            ("residual", figures.residual, "what error feedback owes"),
            ("error_growth", figures.error, "the error of the codecs"),
            ("distance", figures.distance, "what an exchange changed in the weights"),
        ):
            if not isfinite(value):
                return Verdict(bound=bound, why=f"{what} was not finite, which no bound allows")
        crossed = self._beyond(figures)
        if figures.gradient and "gradient_jump" not in crossed:
            self._gradients.append(figures.gradient)
        again = [Verdict(bound=name, why=why) for name, why in crossed.items() if name in self._crossed]
        self._crossed = set(crossed)
        return again[0] if again else None

    def _beyond(self, figures: Figures) -> dict[str, str]:
        """Return, for each bound that is crossed, a clause that says so."""
        bounds = self._bounds
        self._first_error = self._first_error or figures.error
        error = figures.error / self._first_error if self._first_error else 0.0
        # One gradient that is not finite is nothing where a GradScaler feels its way; two windows of them are.
        jump = figures.gradient / statistics.median(self._gradients) if self._gradients else 1.0
        jump = jump if isfinite(figures.gradient) else inf
        rows = (
            ("residual", figures.residual, "what error feedback owes was {} times as long as the gradient"),
            ("error_growth", error, "the error of the codecs was {} times what it was when the plan was adopted"),
            ("distance", figures.distance, "an exchange changed a rank's weights by {} times their norm"),
            ("gradient_jump", jump, "a rank's gradient was {} times as long as it was before"),
        )
        return {
            name: f"{text.format(f'{value:.3g}')}, twice running, and the bound {name} is {getattr(bounds, name):g}"
            for name, value, text in rows
            if value > getattr(bounds, name)
        }
