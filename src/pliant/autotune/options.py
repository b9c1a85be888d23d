"""Options of the automatic choice of a plan, "auto"."""

import math
from collections.abc import Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pliant.autotune.bounds import QualityBounds
from pliant.planner.genome import Gene
from pliant.planner.quality import Quality
from pliant.planner.steps_ratios import Scale

__all__ = ["DEFAULT_EXPERIENCE", "Auto"]

DEFAULT_EXPERIENCE = "cache"
"""Word for the user's own folder, `$XDG_CACHE_HOME/pliant` or `~/.cache/pliant`."""

_SHARE, _OF_PROBE, _OF_TRIALS = 0.1, 0.2, 0.6
"""Share of a training that a search may take, and shares of that for the probe and for trials; turns take the rest."""
_LEAST_PROBE_S, _LEAST_TRIALS_S, _LEAST_AGAIN_S = 0.1, 0.5, 2.1
"""Least time of a probe and of trials, however short the training is, and that for which a later search is made."""
_TRIALS_COST_S = 0.3
"""Time of a few trials beside that of the training's own steps: switches, predictions, slower steps."""
_LEAST_LEFT = 100
"""Steps that must be left for another search, which takes some 30 of them."""


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Options of "auto": ``pliant.relax(model, optimizer, pliant.Auto(quality=1.25))``.

    Three steps are measured: under DDP's own exchange, or in 16 bits if `quality` is above 1. Then the plan that is
    predicted to be the best is put in force, and others are tried that are predicted to be better still. From then on
    step times are monitored: if they change for good, links are measured and plans are tried again. A plan that is not
    exact is monitored as well, and left when it crosses a bound. What was measured and kept is the start of the next
    run.

    >>> Auto(quality=1.1).max_trials
    12
    """

    quality: float = 1.0
    """How many times the steps to the same accuracy a plan may need: 1 for exact ones alone, in 32 or 16 bits."""
    unmeasured: bool = False
    """Whether to try exchanges without measurements of their quality: with other optimizers than SGD all that are not
    exact, and outer momenta (`diloco`) with any."""
    max_trials: int = 12
    """Plans to try at first; when something has changed, two more each time."""
    max_seconds: float = 45.0
    """Seconds after the first trial within which a further one may begin."""
    probe_s: float = 2.5
    """Seconds for the measurement of the links."""
    num_steps: int = 0
    """Optimizer steps that the training makes, if you know. Ratios that were measured in longer trainings do not count,
    and of the others the longest do. Probe, trials and turns then take about a tenth of the time
    of those that are left, if that is less than the two limits above. Nothing is tried that is predicted to save less
    than trials cost, some 0.3 s. A change is not answered where too few are left. 0 for no such limit."""
    least_gain: float = 1.0
    """Predicted speed-up, to the same accuracy, from which on plans are tried: below it no step of the training is
    spent on trials. At 1, plans are always tried."""
    equal_weights: bool = False
    """Whether to try only plans under which all ranks hold DDP's weights and optimizer state after each step, so that
    evaluation and checkpoints need no change."""
    watch: bool = True
    """Whether to search again when the network or a host has changed."""
    bounds: QualityBounds = field(default_factory=QualityBounds)
    """Bounds at which a plan that is not exact is left for DDP's own exchange, also if `watch` is False."""
    tuned_for_ranks: int = 0
    """Ranks for whose joint batch the learning rate was tuned; 0 for all. `run.tuner.advice` depends on it."""
    experience: str | Path | None = DEFAULT_EXPERIENCE
    """File (.json) or folder of what earlier runs have measured and kept, from which this one begins, and which it
    updates. "cache" is `$XDG_CACHE_HOME/pliant` or `~/.cache/pliant`; None keeps nothing."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_trials < 1 or not (self.max_seconds > 0 and 0 < self.probe_s < math.inf):  # NaN is refused too
            raise ValueError(
                f"auto may try {self.max_trials} plans within {self.max_seconds:g} s, after a probe of "
                f"{self.probe_s:g} s; give it at least one plan, times above 0, and a probe that ends."
            )
        if self.num_steps < 0:
            raise ValueError(f"a training cannot have {self.num_steps} steps; give what it makes, or 0 if unknown.")
        if not self.least_gain >= 1:
            raise ValueError(f"least_gain is {self.least_gain:g}, but a speed-up below 1 is a loss; give it 1 or more.")
        if self.tuned_for_ranks < 0:
            raise ValueError(f"a learning rate cannot be tuned for {self.tuned_for_ranks} ranks; 0 means all of them.")
        Quality(budget=self.quality)  # which refuses what is no budget

    def quality_with(self, optimizer: str, scale: Scale, rejected: Set[Gene] = frozenset()) -> Quality:
        """Return the limit of what may be tried with an optimizer at a scale, which gets these options' steps."""
        return Quality(
            budget=self.quality,
            optimizer=optimizer,
            scale=scale._replace(steps=self.num_steps),
            unmeasured=self.unmeasured,
            rejected=rejected,
            equal_weights=self.equal_weights,
        )

    def limited(self, step_s: float, done: int = 0) -> Self:
        """Return these options with limits that follow the length of the training, if that was given.

        Args:
            step_s: Time of a step as it is now.
            done: Steps that were made.

        """
        search_s = self.search_s(step_s, done)
        return replace(
            self,
            probe_s=min(self.probe_s, max(_LEAST_PROBE_S, _OF_PROBE * search_s)),
            max_seconds=min(self.max_seconds, max(_LEAST_TRIALS_S, _OF_TRIALS * search_s)),
        )

    def pays(self, gain: float, step_s: float, done: int) -> bool:
        """Say whether plans are tried that are predicted to be so many times as fast; others as of `limited`."""
        saved_s = (1 - 1 / gain) * max(0, self.num_steps - done) * step_s if self.num_steps else math.inf
        return gain >= self.least_gain and saved_s >= _TRIALS_COST_S

    def may_search(self, step_s: float, done: int) -> bool:
        """Say whether so much of the training is left that a search can pay; arguments as of `limited`."""
        enough = self.search_s(step_s, done) >= _LEAST_AGAIN_S
        return enough and (not self.num_steps or self.num_steps - done >= _LEAST_LEFT)

    def search_s(self, step_s: float, done: int) -> float:
        """Return the time that a search may take; arguments as of `limited`."""
        return _SHARE * max(0, self.num_steps - done) * step_s if self.num_steps else math.inf
