"""Learned error of the simulator: gradient-boosted trees on the logarithm of measured over simulated time."""

from collections.abc import Sequence

import lightgbm
import numpy as np
from numpy.typing import NDArray

__all__ = ["FEW", "MANY", "BoostedCorrection"]

FEW, MANY = 25, 100
"""Below FEW runs nothing is learned; up to MANY at most half of what was learned is believed."""
_BAGS = 10
_TREES = 250
_SETTINGS = {
    "objective": "regression",
    "num_leaves": 7,
    "learning_rate": 0.05,
    "min_data_in_leaf": 4,
    "lambda_l2": 1.0,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "verbose": -1,
    "num_threads": 1,
    "deterministic": True,
}
_SHRINKS = (0.0, 0.25, 0.5, 0.75, 1.0)


class BoostedCorrection:
    """An ensemble of boosted trees, shrunken by how much it has proved to help, and silent where it has seen nothing.

    The share of the correction that is applied is the one with the least error on groups left out of the fit, at most
    a half below 100 runs and none below 25. For a plan with a feature outside what was seen in training, it falls to
    zero with the distance: trees extrapolate by their last leaf, the simulator by physics.

    Uncertainty: the spread of the ensemble, and the error that was left on the groups left out.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._trees: list[lightgbm.Booster] = []
        self._low = self._high = np.zeros(0)
        self.shrink = 0.0
        self.floor = 0.3
        """Standard deviation of the logarithm of time that no fit removes; a guess until there are runs."""

    def fit(self, features: NDArray[np.float64], error: NDArray[np.float64], groups: Sequence[int]) -> None:
        """Learn from features, (num, num_features), and log(measured / simulated), (num,).

        Runs of one group (of a plan, or of a model on a cluster) are left out together when the share is chosen.
        """
        self._trees, self.shrink = [], 0.0
        self._low, self._high = features.min(0), features.max(0)
        if len(error) < FEW or len(set(groups)) < 2:
            self.floor = max(0.02, float(np.std(error))) if len(error) > 2 else 0.3
            return
        held_out = self._held_out(features, error, np.asarray(groups))
        largest = 1.0 if len(error) >= MANY else 0.5
        losses = {s: float(np.mean((error - s * held_out) ** 2)) for s in _SHRINKS if s <= largest}
        self.shrink = min(losses, key=lambda s: (losses[s], s))
        self.floor = max(0.02, losses[self.shrink] ** 0.5)
        if self.shrink > 0:
            self._trees = [_trees(features, error, self._seed + bag) for bag in range(_BAGS)]

    def predict(self, features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the correction to the logarithm of time, (num,), and its standard deviation, (num,)."""
        if not self._trees:
            return np.zeros(len(features)), np.full(len(features), self.floor)
        each = np.stack([np.asarray(tree.predict(features)) for tree in self._trees])  # (bags, num)
        share = self.shrink * self._inside(features)
        return share * each.mean(0), np.sqrt(self.floor**2 + (share * each.std(0)) ** 2)

    def _inside(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 1 inside the box of what was seen, falling to 0 where a feature is a whole range outside it."""
        width = np.maximum(self._high - self._low, 1e-9)
        outside = np.maximum(features - self._high, self._low - features) / width
        return np.clip(1.0 - np.clip(outside, 0.0, None).max(1), 0.0, 1.0)

    def _held_out(
        self, features: NDArray[np.float64], error: NDArray[np.float64], groups: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Predict each group from the others, in at most five folds of whole groups."""
        names = np.unique(groups)
        folds = np.array_split(np.random.default_rng(self._seed).permutation(names), min(5, len(names)))
        predicted = np.zeros_like(error)
        for fold in folds:
            out = np.isin(groups, fold)
            if out.all():
                continue
            predicted[out] = np.asarray(_trees(features[~out], error[~out], self._seed).predict(features[out]))
        return predicted


def _trees(features: NDArray[np.float64], target: NDArray[np.float64], seed: int) -> lightgbm.Booster:
    data = lightgbm.Dataset(features, label=target, params={"verbose": -1, "min_data_in_bin": 1})
    return lightgbm.train({**_SETTINGS, "seed": seed}, data, num_boost_round=_TREES)
