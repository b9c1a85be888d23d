"""Physics first: simulated quantities, coefficients fitted to trials, and what is left, learned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from pliant.planner.boosted_correction import BoostedCorrection
from pliant.planner.families import FAMILIES
from pliant.planner.genome import Genome
from pliant.planner.trials import Trial
from pliant.spec import SyncPlan

__all__ = ["FeatureModel", "Predictor", "TransferPrior", "fit_coefficients", "trusted_coefficients"]

Floats = NDArray[np.float64]

_TRUSTED = 4.0
"""How many times a coefficient may be what it was given as."""
_ROUNDS = 3
"""Which path is critical depends on the coefficients, and they on the path: a few rounds settle it."""
_FAMILIES = tuple(FAMILIES)


class FeatureModel(Protocol):
    """Simulated times of plans, for one workload on one topology."""

    @property
    def coefficients(self) -> Floats:
        """Seconds per unit of each quantity, (num_quantities,), as given or measured on the machine."""
        ...

    @property
    def trust(self) -> Floats:
        """Weights of these coefficients, in trials, (num_quantities,)."""
        ...

    def counts(self, plans: Sequence[SyncPlan], coefficients: Floats) -> Floats:
        """Return the quantities on each plan's critical path, (num_plans, num_quantities), per step.

        A plan's predicted step time is the sum of its quantities, each times its coefficient.
        """
        ...


def fit_coefficients(counts: Floats, measured_s: Floats, prior: Floats, trust: Floats) -> Floats:
    """Return coefficients of at least 0 that explain measured step times, in relative error, near the prior.

    Non-negative least squares over coefficients as multiples z of the prior: the sum over runs of
    (counts_i * prior z / measured_i - 1)^2, plus a weight times (z - 1)^2 for each. Trials that do not depend on a
    coefficient leave it unchanged.

    Args:
        counts: (num_runs, num_quantities).
        measured_s: (num_runs,), above 0.
        prior: (num_quantities,).
        trust: Weights of the prior, in runs, (num_quantities,).

    """
    shares = counts * prior / measured_s[:, None]  # (num_runs, num_quantities)
    weights = np.sqrt(trust)
    stacked = np.concatenate([shares, np.diag(weights)])
    wanted = np.concatenate([np.ones(len(measured_s)), weights])
    return nnls(stacked, wanted)[0] * prior


def trusted_coefficients(fitted: Floats, given: Floats) -> Floats:
    """Return fitted coefficients, each from a quarter of what was given to four times as much."""
    return np.clip(fitted, given / _TRUSTED, given * _TRUSTED)


Cells = Sequence[tuple[FeatureModel, Sequence[Trial]]]
"""Workloads on topologies, each with the trials that were run there; only those that came to an end count."""


@dataclass(frozen=True, kw_only=True)
class TransferPrior:
    """Trials of other workloads, or on other topologies, and what they have taught.

    Coefficients are the prior of the next fit, and what they left unexplained is learned from beside its own trials.
    """

    coefficients: Floats
    """(num_quantities,)."""
    features: Floats
    """(num_trials, num_features)."""
    error: Floats
    """Logarithm of measured over simulated time, (num_trials,)."""
    groups: tuple[int, ...]
    """Which cell each trial belongs to: they are left out together."""

    @classmethod
    def of(cls, cells: Cells, prior: Floats | None = None) -> Self:
        """Return that of some cells, whose physics have the same quantities; at least one trial must be sound."""
        sound = [(physics, kept) for physics, trials in cells if (kept := [t for t in trials if t.status == "ok"])]
        prior = sound[0][0].coefficients if prior is None else prior
        coefficients = _fit_cells(sound, prior, prior)
        features, errors, groups = list[Floats](), list[Floats](), list[int]()
        for k, (physics, trials) in enumerate(sound):
            genes = [t.genes for t in trials]
            counts = physics.counts([g.plan() for g in genes], coefficients)
            rows, log_s = _features(counts * coefficients, genes)
            features.append(rows)
            errors.append(np.log([t.step_s for t in trials]) - log_s)
            groups += [k] * len(trials)
        return cls(
            coefficients=coefficients,
            features=np.concatenate(features),
            error=np.concatenate(errors),
            groups=tuple(groups),
        )


class Predictor:
    """Predicts step times of plans, and learns from trials: coefficients always, a residual once there are enough.

    Args:
        physics: Of the workload and topology that trials are run on.
        seed: Of the learned part.
        experience: From elsewhere.

    """

    def __init__(self, physics: FeatureModel, seed: int = 0, experience: TransferPrior | None = None) -> None:
        self._physics, self._experience = physics, experience
        self._prior = physics.coefficients if experience is None else experience.coefficients
        self.coefficients = self._prior
        self._residual = BoostedCorrection(seed)
        self._unlearned = None if experience is None else (experience.features, experience.error, experience.groups)
        self._counted: dict[Genome, Floats] = {}
        """Counted quantities at these coefficients, so that nothing is simulated twice."""

    @property
    def residual(self) -> BoostedCorrection:
        """Learned remainder that the physics leaves; made when asked for, since that takes longer than the rest."""
        if self._unlearned is not None:
            self._residual.fit(*self._unlearned)
            self._unlearned = None
        return self._residual

    def fit(self, trials: Sequence[Trial]) -> None:
        """Learn from the trials that came to an end; of a plan that was run again, from each run."""
        sound = [trial for trial in trials if trial.status == "ok"]
        if not sound:
            return
        self.coefficients = _fit_cells([(self._physics, sound)], self._prior, self.coefficients)
        self._counted.clear()
        genes = [trial.genes for trial in sound]
        features, simulated = self._features_of(genes)
        error = np.log([trial.step_s for trial in sound]) - simulated
        if self._experience is None:
            plan_of = {g: k for k, g in enumerate(dict.fromkeys(genes))}
            groups = [plan_of[g] for g in genes]
        else:
            features = np.concatenate([self._experience.features, features])
            error = np.concatenate([self._experience.error, error])
            groups = [*self._experience.groups, *[max(self._experience.groups) + 1] * len(genes)]
        self._unlearned = features, error, tuple(groups)

    def predict(self, candidates: Sequence[Genome]) -> tuple[Floats, Floats]:
        """Return the logarithm of step times in s, (num,), and its standard deviation, (num,)."""
        features, simulated = self._features_of(candidates)
        correction, deviation = self.residual.predict(features)
        return simulated + correction, deviation

    def simulate(self, candidates: Sequence[Genome]) -> Floats:
        """Return the logarithm of step times in s as the physics alone predicts them, (num,)."""
        return self._features_of(candidates)[1]

    def features(self, candidates: Sequence[Genome]) -> Floats:
        """Return what plans are compared by, (num, num_features)."""
        return self._features_of(candidates)[0]

    def _features_of(self, candidates: Sequence[Genome]) -> tuple[Floats, Floats]:
        """Return features, (num, num_features), and the logarithm of simulated times, (num,)."""
        if new := [genes for genes in dict.fromkeys(candidates) if genes not in self._counted]:
            rows = self._physics.counts([genes.plan() for genes in new], self.coefficients)
            self._counted.update(zip(new, rows, strict=True))
        counts = np.stack([self._counted[genes] for genes in candidates])
        return _features(counts * self.coefficients, candidates)


def _fit_cells(cells: Cells, prior: Floats, start: Floats) -> Floats:
    """Return coefficients near the prior that explain all trials, all of which are sound."""
    measured_s = np.array([trial.step_s for _, trials in cells for trial in trials])
    plans = [(physics, [trial.genes.plan() for trial in trials]) for physics, trials in cells]
    coefficients = start
    for _ in range(_ROUNDS):
        counts = np.concatenate([physics.counts(each, coefficients) for physics, each in plans])
        coefficients = fit_coefficients(counts, measured_s, prior, cells[0][0].trust)
    return coefficients


def _features(parts_s: Floats, candidates: Sequence[Genome]) -> tuple[Floats, Floats]:
    """Return features, (num, num_features), and the logarithm of simulated times, (num,).

    Features: the simulated time, the share of it that each quantity has, the sizes, the switches, and the family.

    Args:
        parts_s: Seconds of each quantity, (num, num_quantities).
        candidates: The plans.

    """
    simulated_s = np.maximum(parts_s.sum(1), 1e-9)
    own = [
        [
            math.log2(genes.bucket_bytes or 25 << 20),
            math.log2(genes.chunk_bytes),
            float(genes.at_end),
            float(genes.by_hosts),
            float(len(genes.layers) + len(genes.names) + len(genes.sizes)),
            *(float(genes.base.family == family) for family in _FAMILIES),
        ]
        for genes in candidates
    ]
    log_s = np.log(simulated_s)
    return np.column_stack([log_s, parts_s / simulated_s[:, None], np.array(own)]), log_s
