"""Physics first: simulated quantities, coefficients fitted to trials, and what is left, learned."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from pliant.planner.families import FAMILIES
from pliant.planner.genes import Genes
from pliant.planner.residual import Residual
from pliant.planner.trials import Trial
from pliant.spec import SyncPlan

__all__ = ["Physics", "Predictor", "calibrated"]

Floats = NDArray[np.float64]

_PRIOR_WEIGHT = 0.01
"""Of every coefficient's given value, in trials: what no trial speaks of stays what it was."""
_ROUNDS = 3
"""Which path is critical depends on the coefficients, and they on the path: a few rounds settle it."""
_FAMILIES = tuple(FAMILIES)


class Physics(Protocol):
    """What a simulator says of plans, for one workload on one topology."""

    @property
    def coefficients(self) -> Floats:
        """Seconds per unit of each quantity, (num_quantities,), as given or measured on the machine."""
        ...

    def counts(self, plans: Sequence[SyncPlan], coefficients: Floats) -> Floats:
        """Return the quantities on each plan's critical path, (num_plans, num_quantities), per step.

        A plan's predicted step time is the sum of its quantities, each times its coefficient.
        """
        ...


def calibrated(counts: Floats, measured_s: Floats, prior: Floats) -> Floats:
    """Return coefficients of at least 0 that explain measured step times, in relative error, near the prior.

    Non-negative least squares over coefficients as multiples z of the prior: the sum over runs of
    (counts_i * prior z / measured_i - 1)^2, plus a small weight times (z - 1)^2 for each.

    Args:
        counts: (num_runs, num_quantities).
        measured_s: (num_runs,), above 0.
        prior: (num_quantities,).

    """
    shares = counts * prior / measured_s[:, None]  # (num_runs, num_quantities)
    weight = math.sqrt(_PRIOR_WEIGHT)
    stacked = np.concatenate([shares, weight * np.eye(len(prior))])
    wanted = np.concatenate([np.ones(len(measured_s)), np.full(len(prior), weight)])
    return nnls(stacked, wanted)[0] * prior


class Predictor:
    """Predicts step times of plans, and learns from trials: coefficients always, a residual once there are enough.

    Args:
        physics: Of the workload and topology that trials are run on.
        seed: Of the learned part.

    """

    def __init__(self, physics: Physics, seed: int = 0) -> None:
        self._physics = physics
        self.coefficients = physics.coefficients
        self.residual = Residual(seed)
        self._counted: dict[Genes, Floats] = {}
        """What the physics says at these coefficients, so that nothing is simulated twice."""

    def fit(self, trials: Sequence[Trial]) -> None:
        """Learn from the trials that came to an end; of a plan that was run again, from each run."""
        sound = [trial for trial in trials if trial.status == "ok"]
        if not sound:
            return
        plans = [trial.genes.plan() for trial in sound]
        measured_s = np.array([trial.step_s for trial in sound])
        for _ in range(_ROUNDS):
            counts = self._physics.counts(plans, self.coefficients)
            self.coefficients = calibrated(counts, measured_s, self._physics.coefficients)
        self._counted.clear()
        genes = [trial.genes for trial in sound]
        features, simulated = self._looked_at(genes)
        plan_of = {g: k for k, g in enumerate(dict.fromkeys(genes))}
        self.residual.fit(features, np.log(measured_s) - simulated, [plan_of[g] for g in genes])

    def predict(self, candidates: Sequence[Genes]) -> tuple[Floats, Floats]:
        """Return the logarithm of step times in s, (num,), and its standard deviation, (num,)."""
        features, simulated = self._looked_at(candidates)
        correction, deviation = self.residual.predict(features)
        return simulated + correction, deviation

    def features(self, candidates: Sequence[Genes]) -> Floats:
        """Return what plans are compared by, (num, num_features)."""
        return self._looked_at(candidates)[0]

    def _looked_at(self, candidates: Sequence[Genes]) -> tuple[Floats, Floats]:
        """Return features, (num, num_features), and the logarithm of simulated times, (num,).

        Features: the simulated time, the share of it that each quantity has, the sizes, the switches, and the family.
        """
        if new := [genes for genes in dict.fromkeys(candidates) if genes not in self._counted]:
            rows = self._physics.counts([genes.plan() for genes in new], self.coefficients)
            self._counted.update(zip(new, rows, strict=True))
        parts_s = np.stack([self._counted[genes] for genes in candidates]) * self.coefficients
        simulated_s = np.maximum(parts_s.sum(1), 1e-9)
        own = [
            [
                math.log2(genes.bucket_bytes or 25 << 20),
                math.log2(genes.chunk_bytes),
                float(genes.at_end),
                float(genes.by_hosts),
                float(len(genes.layers)),
                *(float(genes.base.family == family) for family in _FAMILIES),
            ]
            for genes in candidates
        ]
        log_s = np.log(simulated_s)
        return np.column_stack([log_s, parts_s / simulated_s[:, None], np.array(own)]), log_s
