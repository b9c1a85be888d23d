"""Settings of the look at the curvature, which are part of a plan."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from pliant.spec.plain import LATER

__all__ = ["CurvatureSpec"]

EstimatorName = Literal["gauss_newton", "hutchinson", "fisher"]


@dataclass(frozen=True, kw_only=True)
class CurvatureSpec:
    """Which estimate of the Hessian's diagonal, on how much of a batch, how often, and at what price.

    Raises:
        ValueError: A setting is out of its range.

    """

    estimator: EstimatorName = "gauss_newton"
    """Gauss-Newton-Bartlett costs one forward and backward, Hutchinson two or more, Fisher one for each sample."""
    batch_share: float = 0.25
    """Part of each rank's batch that is looked at: its first samples, at least one, or two if there are as many."""
    beta: float = 0.9
    """Of the moving average over refreshes, which is corrected for having begun at zero; 0 keeps the last estimate."""
    shrink: float = 0.5
    """How far a block's value goes towards the mean of its parameter, since single blocks are noisy; 0 to 1."""
    clip: float = 50.0
    """A block's value stays between the mean of its parameter over, and times, this."""
    interval: int = 20
    """Steps until the second look; from then on the interval follows how stable the ranks of the blocks are."""
    max_interval: int = 200
    """It does not grow beyond this, unless time_share asks for it."""
    time_share: float = 0.03
    """Upper limit of the time that goes into curvature, as a part of that of the steps without it."""
    bytes_share: float = field(default=0.05, metadata=LATER)
    """Upper limit of the bytes that looks send, as a part of those that exchanges of blocks do; but for the first."""

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
