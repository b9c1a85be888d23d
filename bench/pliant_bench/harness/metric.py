"""Metrics by which a training is judged. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["METRICS", "Metric"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of a trained model on data that it has not seen."""

    name: str
    higher: bool
    """Whether more is better."""
    tolerance: float
    """How much worse than 16-bit DDP, as `gap` counts, an arm may end that is said to keep it."""
    axis: str
    """What a plot writes beside its values."""

    def is_reached(self, value: float, target: float) -> bool:
        """Say whether a value is as good as a target."""
        return value >= target if self.higher else value <= target

    def gap(self, value: float, base: float) -> float:
        """Return how much better than a base a value is, negative if worse: points of accuracy, or percent."""
        return 100 * (value - base) if self.higher else 100 * (1 - value / base)

    def text(self, value: float) -> str:
        """Print a value for people."""
        return f"{value:.2%}" if self.higher else f"{value:.3f}"

    def goal(self, target: float) -> str:
        """Print a target for people."""
        return f"{target:.0%}" if self.higher else f"{target:g}"

    def drawn(self, value: float) -> float:
        """Return what a plot draws."""
        return 100 * value if self.higher else value

    def step_to(self, target: float, curve: Sequence[dict[str, Any]]) -> float | None:
        """Return the step at which a curve first reaches a target, on straight lines between its points; or None."""
        before: dict[str, Any] | None = None
        for point in curve:
            if self.is_reached(point[self.name], target):
                if before is None:
                    return float(point["step"])
                share = (target - before[self.name]) / (point[self.name] - before[self.name])
                return before["step"] + share * (point["step"] - before["step"])
            before = point
        return None


METRICS = {
    "images": Metric(name="accuracy", higher=True, tolerance=0.5, axis="test accuracy, %"),
    "lm": Metric(name="perplexity", higher=False, tolerance=1.0, axis="held-out perplexity per character"),
    "own": Metric(name="loss", higher=False, tolerance=1.0, axis="loss"),
}
"""Of each task of `pliant bench --train`."""
