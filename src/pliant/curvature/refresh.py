"""Interval between estimates: as long as the ranking of the blocks allows, and within a share of the time."""

import math
from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["RefreshInterval", "log_shift", "spearman"]

_STABLE_RANKS, _STABLE_SHIFT = 0.95, 0.2
_LEAST = 10


@dataclass(frozen=True, kw_only=True)
class RefreshInterval:
    """An interval in steps that adapts to the change between estimates. Pure arithmetic.

    It doubles while the ranking of the blocks (Spearman's correlation above 0.95) and their size (median logarithm of
    the ratio within 0.2) stay the same, and is halved otherwise, down to 10 steps. In any case estimates are so far
    apart that their cost stays within the share of training time that they may take.
    """

    interval: int = 20
    max_interval: int = 200
    time_share: float = 0.03

    def after(self, ranks: float, shift: float) -> "RefreshInterval":
        """Return the interval after two estimates with these `spearman` and `log_shift`."""
        if ranks > _STABLE_RANKS and abs(shift) < _STABLE_SHIFT:
            return replace(self, interval=min(2 * self.interval, max(self.max_interval, self.interval)))
        return replace(self, interval=max(self.interval // 2, min(_LEAST, self.interval)))

    def steps(self, cost_s: float, step_s: float) -> int:
        """Return the steps until the next estimate.

        Args:
            cost_s: Seconds of the last one.
            step_s: Seconds of a step without one; 0 if not known yet, and then cost is no limit.

        """
        afforded = math.ceil(cost_s / (self.time_share * step_s)) if step_s > 0 else 0
        return max(self.interval, afforded)


def spearman(one: Tensor, other: Tensor) -> float:
    """Return the correlation of the ranks of two (n,) tensors, ties at their mean rank; constants agree with constants.

    Spearman, "The proof and measurement of association between two things", 1904.
    """
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    if not (a.any() and b.any()):
        return float(not (a.any() or b.any()))
    return float(a @ b / (a.norm() * b.norm()))


def log_shift(new: Tensor, old: Tensor) -> float:
    """Return the median of log(new / old) over the elements, (n,), in which both are above 0; 0 if there are none."""
    both = (new > 0) & (old > 0)
    return float((new[both] / old[both]).log().median()) if bool(both.any()) else 0.0


def _ranks(x: Tensor) -> Tensor:
    _, place, counts = x.flatten().unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()  # the rank of the last of equals
    return (last - (counts.double() - 1) / 2)[place]
