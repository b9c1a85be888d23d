"""Steps ratios from curves, and the tuning of a learning rate. No torch."""

import math
from collections.abc import Callable, Sequence

__all__ = ["TARGET_SHARE", "step_reaching", "target_of", "tuned_rate"]

TARGET_SHARE = 0.8
"""The target is the held-out loss that 16-bit all-reduce has after this share of its steps."""
_FACTOR = 2.0
_MOST_RATES = 12

Curve = Sequence[tuple[int, float]]
"""Steps, rising, and the held-out loss after each."""


def target_of(curve: Curve) -> float:
    """Return the target that a curve of 16-bit all-reduce sets.

    >>> target_of([(20, 3.0), (40, 2.5), (60, 2.2), (80, 2.1), (100, 2.0)])
    2.1

    Raises:
        ValueError: The curve has no point at that share of its steps.

    """
    step = TARGET_SHARE * curve[-1][0]
    for at, loss in curve:
        if math.isclose(at, step):
            return loss
    raise ValueError(
        f"the target is the loss after {step:g} steps, but the curve has points after "
        f"{', '.join(str(at) for at, _ in curve)}; let its distance divide a fifth of the steps."
    )


def step_reaching(curve: Curve, target: float) -> float | None:
    """Return the step at which a curve first reaches a target, on straight lines between its points; None if never.

    >>> step_reaching([(10, 3.0), (20, 2.0), (30, 1.9)], 2.5)
    15.0
    """
    before: tuple[int, float] | None = None
    for step, loss in curve:
        if loss <= target:
            if before is None:
                return float(step)
            return before[0] + (before[1] - target) / (before[1] - loss) * (step - before[0])
        before = (step, loss)
    return None


def tuned_rate(first: float, loss_at: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """Return the learning rate whose neighbours at half and at twice it are both worse, and the loss at each one tried.

    Of two neighbours with equal losses, which are better than those beside them, it is one.

    Args:
        first: Rate to begin with.
        loss_at: Trains at a rate and returns the loss; more than any other where it diverges.

    Raises:
        ValueError: No such rate was found among the first twelve, since the loss falls on and on.

    >>> tuned_rate(1.0, lambda rate: abs(rate - 4.0))[0]
    4.0

    """
    losses: dict[float, float] = {}
    place = 0
    while len(losses) < _MOST_RATES:
        near = [first * _FACTOR**k for k in (place, place - 1, place + 1)]
        came_back = losses.keys() >= {*near}  # from a neighbour whose loss is the same
        for rate in near:
            if rate not in losses:
                losses[rate] = loss_at(rate)
        best = min(near, key=losses.__getitem__)
        if best == near[0] and (came_back or losses[best] < min(losses[near[1]], losses[near[2]])):
            return best, dict(sorted(losses.items()))
        place += 1 if best == near[2] else -1
    raise ValueError(f"no learning rate from {min(losses):g} to {max(losses):g} is better than both its neighbours.")
