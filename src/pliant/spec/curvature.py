"""Settings of the curvature estimate, which are part of a plan."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pliant.spec.plain import LATER
from pliant.spec.ranges import Count, Decay, Positive, Range, Ratio, Share, check_ranges

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
    batch_share: Ratio = 0.25
    """Part of each rank's batch that is used: its first samples, at least one, or two if there are as many."""
    beta: Decay = 0.9
    """Decay of the moving average over estimates, with bias correction; 0 keeps the last estimate."""
    shrink: Share = 0.5
    """Weight of the parameter's mean in a block's value, since single blocks are noisy; 0 to 1."""
    clip: Annotated[float, Range(low=1)] = 50.0
    """Largest factor between a block's value and the mean of its parameter, up or down."""
    interval: Count = 20
    """Steps until the second estimate; from then on the interval follows how stable the ranking of the blocks is."""
    max_interval: int = 200
    """Largest interval, unless time_share asks for more."""
    time_share: Positive = 0.03
    """Upper limit of the time for curvature, as a share of the steps' time without it."""
    bytes_share: Positive = field(default=0.05, metadata=LATER)
    """Upper limit of the bytes for curvature, as a share of the bytes of block exchanges; the first estimate is
    exempt."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.max_interval < self.interval:
            raise ValueError(
                f"invalid CurvatureSpec: max_interval must be at least the interval of {self.interval}, got "
                f"{self.max_interval}."
            )
