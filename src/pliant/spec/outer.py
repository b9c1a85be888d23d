"""Settings of the outer optimizer of local steps, constant or along the training, and what they are by default."""

import math
from dataclasses import dataclass
from itertools import pairwise

from pliant.spec.exchange import require
from pliant.spec.ranges import Count, Decay, Number, Positive, check_ranges

__all__ = ["Outer", "Points", "outer_lr_for", "outer_momentum_for"]

Points = tuple[tuple[float, float], ...]
"""Shares of the training, each with the value that a setting has there; in between it is linear."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """SGD with Nesterov or plain momentum on the point where ranks set out; it takes the mean change of the weights.

    >>> falling = Outer(momentum=0.9, momentum_points=((0.5, 0.9), (1.0, 0.5)), total_steps=1000)
    >>> [round(falling.momentum_at(step), 3) for step in (0, 500, 750, 1000, 2000)]
    [0.9, 0.9, 0.7, 0.5, 0.5]
    """

    lr: Positive = 1.0
    momentum: Decay = 0.0
    nesterov: bool = True
    """Whether the momentum looks ahead: theta <- theta - lr (D + momentum m), and not theta - lr m."""
    every: Count = 1
    """Rounds from one step of the momentum to the next, each with the sum of their changes (delayed Nesterov)."""
    lr_points: Points = ()
    """Points through which lr goes on from its value at the beginning, to stay at the last."""
    momentum_points: Points = ()
    """Points through which the momentum goes on likewise."""
    total_steps: Number = 0
    """Steps of the whole training, of which points name shares; 0 if nobody has said."""

    def __post_init__(self) -> None:
        check_ranges(self)
        _require_points("lr", self.lr_points, 0, math.inf)
        _require_points("momentum", self.momentum_points, -math.inf, 1)
        require(
            self.total_steps > 0 or not (self.lr_points or self.momentum_points),
            "Outer",
            "points are shares of the training, whose length is not known; set total_steps to the steps of all of it.",
        )
        require(
            self.every == 1 or self.has_momentum,
            "Outer",
            f"every counts rounds between steps of the momentum, got {self.every} without a momentum; set one, or "
            "every=1.",
        )

    @property
    def has_momentum(self) -> bool:
        """Whether there is a momentum at any time."""
        return self.momentum > 0 or any(value > 0 for _, value in self.momentum_points)

    @property
    def takes_mean(self) -> bool:
        """Whether the result is the mean of the weights, as without an outer optimizer."""
        return self.lr == 1 and not self.lr_points and not self.has_momentum

    def lr_at(self, step: int) -> float:
        """Return lr after so many steps of the training."""
        return self._value_at(step, self.lr, self.lr_points)

    def momentum_at(self, step: int) -> float:
        """Return the momentum after so many steps of the training."""
        return self._value_at(step, self.momentum, self.momentum_points)

    def num_rounds(self, period: int) -> float:
        """Return the steps that the momentum makes in the whole training; 0 where its length is not known."""
        return self.total_steps / (period * self.every)

    def _value_at(self, step: int, first: float, points: Points) -> float:
        share = step / max(self.total_steps, 1)
        for (begin, before), (end, after) in pairwise(((0.0, first), *points)):
            if share < end:
                return before + (after - before) * (share - begin) / (end - begin)
        return points[-1][1] if points else first


def _require_points(name: str, points: Points, above: float, below: float) -> None:
    shares = (0.0, *(share for share, _ in points))
    require(
        all(before < share <= 1 for before, share in pairwise(shares)),
        "Outer",
        f"{name}_points must be at shares of the training that rise, above 0 and up to 1, got {points}.",
    )
    wanted = "above 0 and finite" if below == math.inf else "at least 0 and below 1"
    holds = all(above < value < below and value >= 0 for _, value in points)
    require(holds, "Outer", f"{name}_points must have values {wanted}, got {points}.")


def outer_momentum_for(total_steps: int, period: int) -> float:
    """Return the momentum whose memory, 1 / (1 - momentum) rounds, is a tenth of the training; 0.9 at most.

    >>> [round(outer_momentum_for(steps, 32), 2) for steps in (250, 800, 1600, 3200, 32000)]
    [0.0, 0.6, 0.8, 0.9, 0.9]
    """
    return min(0.9, max(0.0, 1 - 10 * period / total_steps))


def outer_lr_for(num_ranks: int) -> float:
    """Return the outer rate, which rises with the ranks: 0.7 up to four, and 0.15 more each time they double to 16.

    >>> [round(outer_lr_for(ranks), 2) for ranks in (1, 4, 8, 16, 64)]
    [0.7, 0.7, 0.85, 1.0, 1.0]
    """
    return min(1.0, 0.7 + 0.15 * math.log2(max(num_ranks, 4) / 4))
