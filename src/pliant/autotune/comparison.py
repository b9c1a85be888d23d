"""Comparison of plans with exact training, in turns: its outcome."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Comparison"]

_MOST, _PAYS_ABOVE = 0.75, 1.01


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Times of plans and of exact training, taken in turns."""

    best: int
    """Which of the plans was the fastest to the same accuracy."""
    gains: tuple[float, ...]
    """Speed over exact training's, turn by turn."""
    exact_s: float
    """Step time of exact training, median over its turns."""
    plans_s: tuple[float, ...]
    """Likewise of each plan; NaN for one that failed before it was timed."""
    failed: Mapping[int, str] = field(default_factory=dict[int, str])
    """Which of the plans have failed, and why."""

    @property
    def is_faster(self) -> bool:
        """Whether it was faster in three turns of four, and by more than 1 % at the median."""
        if not self.gains:
            return False
        faster = sum(gain > 1 for gain in self.gains)
        return faster >= _MOST * len(self.gains) and statistics.median(self.gains) > _PAYS_ABOVE
