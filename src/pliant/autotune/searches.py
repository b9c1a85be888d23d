"""Searches of one run, on its first rank: each begins from what those before have taught."""

import math
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pliant.autotune.options import Auto
from pliant.planner import Genome, Quality, SearchLimits, SearchResult, Space, Trial
from pliant.planner.challenge import SearchStart, challenge_steps
from pliant.planner.predictor import Predictor, TransferPrior, trusted_coefficients
from pliant.simulator import CostFeatures

__all__ = ["Searches"]

_SAMPLES, _CELLS = 100, 3
"""Plans drawn and predicted; searches that teach the next one."""
_KNOWN_TRIALS = 3
"""Plans that are tried at most where an earlier run has left what it kept."""


class Searches:
    """Searches for a plan, one after another.

    Args:
        auto: How long the first may take, and what all are drawn from.

    """

    def __init__(self, auto: Auto) -> None:
        self.limits = auto
        """Limits of the next one."""
        self.leaving_s = 0.0
        """Time of the means with which ranks leave a plan that keeps them apart, as the last one was told; 0 before."""
        self.lost_s: list[float] = []
        """Time that each trial has cost beside its steps: switches, and steps that are slow after them."""
        self._cells: list[tuple[CostFeatures, Sequence[Trial]]] = []
        """What the last ones have tried."""
        self.spent_s = 0.0
        """Time that trials of the last one have cost, beyond that of their steps under the best plan."""
        self._prepared_s = math.nan
        self._began_s = time.perf_counter()
        self._model: Predictor | None = None

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Coefficients that the last search has fitted, (num_keys,); empty before one."""
        return () if self._model is None else tuple(self._model.coefficients.tolist())

    def step_s(self, genes: Genome) -> float:
        """Return the step time of a plan as the last search has learned to predict it; NaN before one."""
        return math.nan if self._model is None else float(np.exp(self._model.predict([genes])[0][0]))

    def gain(self, first: Genome, in_force: Trial, exact_s: float, quality: Quality) -> float:
        """Return how many times sooner than exact training the best is predicted to be: at least 1.

        Args:
            first: Plan that the last search has asked for first; that in force if it has asked for none.
            in_force: Plan in force, whose time was seen.
            exact_s: Step time of torch's own exchange, seen or predicted.
            quality: How many times the steps plans need.

        """
        seen_s = in_force.step_s * quality.factor(in_force.genes)
        return exact_s / min(exact_s, seen_s, self.step_s(first) * quality.factor(first))

    def forget_last(self) -> None:
        """Let the last one teach nothing."""
        self._cells = self._cells[:-1]

    @property
    def switch_s(self) -> float:
        """Return what a trial costs beside its steps, where connections are known; 0 before one."""
        return statistics.median(self.lost_s[1:] or self.lost_s or [0.0])

    @property
    def elapsed_s(self) -> float:
        """Return the time since the first one could begin."""
        return time.perf_counter() - self._began_s

    def search(
        self,
        space: Space,
        features: CostFeatures,
        seeds: Mapping[str, Genome],
        in_force: Trial,
        num_trials: int,
        start: SearchStart,
        *,
        resumes: bool = False,
    ) -> Generator[tuple[Genome, float], Trial, SearchResult]:
        """Search, as `challenge_steps` does.

        Args:
            space: Plans to choose from.
            features: Of plans on the network, as it is now.
            seeds: Plans to begin with, beside the builders.
            in_force: The plan in force, with its step time.
            num_trials: At most so many.
            start: Start, but for the clock, and for what leaving a plan costs.
            resumes: Whether it goes on where the last one has ended, under the same conditions.

        """
        known = [in_force]
        if resumes and self._cells:
            known = [*(trial for trial in self._cells[-1][1] if trial.genes != in_force.genes), in_force]
            start = replace(start, spent_s=self.spent_s)
            self.forget_last()
        self.leaving_s = features.leaving_s()
        model = self._model = Predictor(features, self.limits.seed, self._learned())
        limits = SearchLimits(
            max_trials=num_trials if start.first is None else min(_KNOWN_TRIALS, num_trials),
            max_seconds=self.limits.max_seconds,
            seeds={**seeds, **space.baselines},
            num_drawn=_SAMPLES,
            known=known,
            seed=self.limits.seed,
        )
        prepared_s = self.elapsed_s if math.isnan(self._prepared_s) else self._prepared_s  # all was measured before
        start = replace(start, began_s=self._began_s, leaving_s=self.leaving_s, clock=time.perf_counter)
        found = yield from challenge_steps(space, model, limits, replace(start, prepared_s=prepared_s))
        self.spent_s, self._prepared_s = found.spent_s, found.prepared_s
        self._cells = [*self._cells[1 - _CELLS :], (features, found.trials)]
        return found

    def _learned(self) -> TransferPrior | None:
        """Return what earlier searches have taught; no coefficient far from what it is elsewhere.

        One that was fitted to nothing, such as that of a wire whose exchanges were hidden, would remain nothing.
        """
        if not self._cells:
            return None
        given, found = self._cells[0][0].coefficients, TransferPrior.of(self._cells)
        return replace(found, coefficients=trusted_coefficients(found.coefficients, given))
