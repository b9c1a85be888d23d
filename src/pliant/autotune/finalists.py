"""Plans that are held against exact training after a search."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from pliant.autotune.summary import Choice
from pliant.planner import Genome, Quality, SearchResult, Trial
from pliant.spec import SyncPlan

__all__ = [
    "LEAVE_ABOVE",
    "UNEQUAL",
    "Finalist",
    "PlanDecision",
    "is_as_predicted",
    "select_finalists",
    "trial_of",
]

_NEAR = 1.25
"""Largest time of a finalist over the least."""
LEAVE_ABOVE = 1.03
"""Least gain, as a factor, for which a plan that was timed is left for another: near ties do not alternate."""
UNEQUAL = 2.0
"""Times that a plan may be quicker than predicted, or may have changed more than another since, on one network."""


class Finalist(NamedTuple):
    """A plan to be compared with exact training."""

    plan: SyncPlan
    is_exact: bool
    ratio: float
    """How many times the steps of exact training it needs."""
    tried_s: float
    """Step time in its trial."""


@dataclass(frozen=True)
class PlanDecision:
    """Outcome of a search, before it is in force; the same on all ranks but for its genes."""

    best: Finalist
    """The best of the plans other than torch's own exchange, or that itself."""
    genes: Genome
    """Of the plan that is kept, on the first rank."""
    gains: tuple[float, ...] = ()
    """Speed of the best over torch's own exchange, turn by turn; empty if there was nothing to compare."""
    adopted: bool = False
    """Whether the best is kept, and not torch's own exchange."""
    expected_s: float = math.nan
    """Step time of what is kept; NaN if it is not known."""
    predicted: bool = False
    """Whether the time of torch's own exchange was known or predicted, and took no turn."""
    due_s: float = math.inf
    """Time since the run began from which on turns of the best are affordable; inf if none are due."""

    def plan(self, exact: SyncPlan) -> SyncPlan:
        """Return the plan that is kept: the best, or the exact one."""
        return self.best.plan if self.adopted else exact

    def choice(self, exact: SyncPlan, num_tried: int) -> Choice:
        """Return the outcome, of so many plans that were tried on the first rank."""
        return Choice(
            plan=self.plan(exact),
            steps_ratio=self.best.ratio if self.adopted else 1.0,
            gains=self.gains,
            adopted=self.adopted,
            num_tried=num_tried,
        )


def select_finalists(found: SearchResult, in_force: Trial | None, quality: Quality, most: int) -> list[Trial]:
    """Return the best of a search, best first, or what is in force if that is about as good."""
    sound = {t.genes: t for t in found.trials if t.status == "ok"}.values()
    cost_s = {t.genes: t.step_s * quality.factor(t.genes) for t in sound}
    least_s = min(cost_s.values())
    if in_force is not None and cost_s.get(in_force.genes, math.inf) <= LEAVE_ABOVE * least_s:
        return [in_force]
    best_first = sorted(sound, key=lambda t: cost_s[t.genes])
    return [t for t in best_first if cost_s[t.genes] <= _NEAR * least_s][:most]


def trial_of(genes: Genome, found: SearchResult | None) -> Trial | None:
    """Return the trial of a plan, if it has times."""
    trials = () if found is None else found.trials
    return next((trial for trial in trials if trial.genes == genes and trial.steps_s), None)


def is_as_predicted(found: SearchResult | None, in_force: Trial) -> bool:
    """Say whether no trial took less than half of its prediction; if one did, the network may be another now."""
    if found is None:
        return False
    pairs = zip(found.trials, found.predicted_s, strict=False)  # a result may be without predictions
    seen = [(trial.step_s, s) for trial, s in pairs if trial.status == "ok" and trial != in_force]
    return not any(UNEQUAL * step_s < predicted_s for step_s, predicted_s in seen)
