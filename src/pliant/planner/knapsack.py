"""A knapsack with one choice for each group, by dynamic programming over an error that is cut into levels."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["solve_knapsack"]

Floats = NDArray[np.float64]

_LEVELS = 10_000


def solve_knapsack(errors: Floats, costs: Floats, budget: float, levels: int = _LEVELS) -> list[int]:
    """Return for each group the setting with which all together cost least and err at most by the budget.

    What the budget leaves after every group's least error is cut into so many levels, and each error above the least
    is rounded up to whole ones. So a result is never above the budget; it is the least costly one of the problem in
    levels, and of those one with the least error. Rounding gives away at most num_groups / levels of what is left.

    Args:
        errors: (num_groups, num_settings), at least 0.
        costs: (num_groups, num_settings), at least 0.
        budget: On the sum over groups of the errors.
        levels: Finer is nearer to the best, and takes longer: num_groups * num_settings * levels additions.

    Raises:
        ValueError: Even the least errors exceed the budget.

    """
    least = errors.min(1)
    room = budget - float(least.sum())
    if not room >= 0:  # so is NaN
        raise ValueError(
            f"a budget of {budget:g} for the relative squared error cannot be kept: the least that these settings "
            f"reach is {least.sum():.4g}; raise the budget, or offer milder settings or exact exchange."
        )
    above = errors - least[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.where(above == 0, 0.0, np.ceil(above * levels / room))  # infinite if there is no room
    spent = np.minimum(steps, levels + 1).astype(int)  # (num_groups, num_settings), in levels
    best = np.full(levels + 1, np.inf)  # cost of the groups so far, if they spend exactly so many levels
    best[0] = 0.0
    taken: list[NDArray[np.int64]] = []
    for group in range(len(errors)):
        paths = np.full((errors.shape[1], levels + 1), np.inf)  # (num_settings, levels + 1)
        for setting, spend in enumerate(spent[group]):
            if spend <= levels:
                paths[setting, spend:] = best[: levels + 1 - spend] + costs[group, setting]
        taken.append(paths.argmin(0))
        best = paths.min(0)
    level = int(best.argmin())
    picked: list[int] = []
    for group in reversed(range(len(errors))):
        picked.append(int(taken[group][level]))
        level -= int(spent[group, picked[-1]])
    return picked[::-1]
