"""Scores of predicted step times against measured ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pliant.planner import Trial

__all__ = ["TOPS", "judged"]

Floats = NDArray[np.float64]

TOPS = (1, 5, 10)
"""The best of so many predicted first are measured, and the best of them is taken."""


def judged(scores: Floats, trials: Sequence[Trial], *, absolute: bool = True) -> dict[str, float]:
    """Return what predictions are worth on the trials of one cell.

    Args:
        scores: The logarithm of predicted step times in s, (num,), or, without `absolute`, anything of the same order.
        trials: What was measured, each plan once; all came to an end.
        absolute: Whether scores are times.

    Returns:
        `pair`: the share of pairs in order, without those closer than twice their noise. `tau`: Kendall's tau-b. Both
        are left out where times have no order: of one plan, or of plans that cannot be told apart.
        `regret@k` for k of `TOPS`: by how much the best of the first k predicted is slower than the best of all.
        `error` and `p90`: the median and the 90 % quantile of the relative error of times.

    """
    times = np.array([t.step_s for t in trials])
    noise = np.array([t.noise_s for t in trials])
    i, j = np.triu_indices(len(trials), 1)
    clear = np.abs(times[i] - times[j]) > 2 * (noise[i] + noise[j])
    said, was = np.sign(scores[i] - scores[j]), np.sign(times[i] - times[j])
    order = np.argsort(scores)
    found: dict[str, float] = {}
    if clear.any():
        found["pair"] = float((said == was)[clear].mean())
    if was.any():
        found["tau"] = float(said @ was / (np.sqrt((said @ said) * (was @ was)) or 1.0))
    for k in TOPS:
        found[f"regret@{k}"] = float(times[order[:k]].min() / times.min() - 1)
    if absolute:
        errors = np.abs(np.exp(scores) / times - 1)
        found |= {"error": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9))}
    return found
