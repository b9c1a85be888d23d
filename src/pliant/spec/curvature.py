"""Settings of the curvature estimate, which are part of a plan."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from pliant.spec.plain import LATER

__all__ = ["CurvatureSpec"]

EstimatorName = Literal["gauss_newton", "hutchinson", "fisher"]


@dataclass(frozen=True, kw_only=True)
class CurvatureSpec:
    """Settings of an estimate of the Hessian's diagonal: estimator, share of the batch, interval and cost.

    Raises:
        ValueError: A setting is out of its range.

    >>> CurvatureSpec(estimator="hutchinson").interval
    20

    """

    estimator: EstimatorName = "gauss_newton"
    """Gauss-Newton-Bartlett costs one forward and backward, Hutchinson two or more, Fisher one for each sample."""
    batch_share: float = 0.25
    """Part of each rank's batch that is used: its first samples, at least one, or two if there are as many."""
    beta: float = 0.9
    """Decay of the moving average over estimates, with bias correction; 0 keeps the last estimate."""
    shrink: float = 0.5
    """Weight of the parameter's mean in a block's value, since single blocks are noisy; 0 to 1."""
    clip: float = 50.0
    """Largest factor between a block's value and the mean of its parameter, up or down."""
    interval: int = 20
    """Steps until the second estimate; from then on the interval follows how stable the ranking of the blocks is."""
    max_interval: int = 200
    """Largest interval, unless time_share asks for more."""
    time_share: float = 0.03
    """Upper limit of the time for curvature, as a share of the steps' time without it."""
    bytes_share: float = field(default=0.05, metadata=LATER)
    """Upper limit of the bytes for curvature, as a share of the bytes of block exchanges; the first estimate is
    exempt."""

    def __post_init__(self) -> None:
        ranges = {
            "estimator": self.estimator in get_args(EstimatorName),
            "batch_share": 0 < self.batch_share <= 1,
            "beta": 0 <= self.beta < 1,
            "shrink": 0 <= self.shrink <= 1,
            "clip": self.clip >= 1,
            "interval": self.interval >= 1,
            "max_interval": self.max_interval >= self.interval,
            "time_share": self.time_share > 0,
            "bytes_share": self.bytes_share > 0,
        }
        bad = [f"{name}={getattr(self, name)}" for name, holds in ranges.items() if not holds]
        if bad:
            raise ValueError(
                f"curvature cannot be felt with {', '.join(bad)}; needed are an estimator of "
                f"{', '.join(get_args(EstimatorName))}, 0 < batch_share <= 1, 0 <= beta < 1, 0 <= shrink <= 1, "
                "clip >= 1, 1 <= interval <= max_interval, time_share > 0 and bytes_share > 0."
            )
