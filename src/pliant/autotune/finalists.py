"""After a search: which plans are held against exact training, and what the next search learns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pliant.planner import Quality, SearchResult, Trial
from pliant.planner.predictor import TransferPrior
from pliant.simulator import CostFeatures
from pliant.spec import SyncPlan

__all__ = ["Finalist", "select_finalists", "load_experience"]

_NEAR = 1.25
"""Of the best plans, those are held against each other that took at most so many times the least."""
_LEAVE_ABOVE = 1.03
"""After a change, the plan in force is left only for one that took so many times less: near ties do not take turns."""
_TRUSTED = 4.0
"""How many times a coefficient may be what it was given as."""


class Finalist(NamedTuple):
    """A plan to be held against exact training."""

    plan: SyncPlan
    is_exact: bool
    ratio: float
    """How many times the steps of exact training it needs."""
    tried_s: float
    """What a step took in its trial."""


def load_experience(cells: Sequence[tuple[CostFeatures, Sequence[Trial]]]) -> TransferPrior | None:
    """Return what earlier searches have taught; no coefficient far from what it is elsewhere.

    One that was fitted to nothing, such as that of a wire whose exchanges were hidden, would remain nothing.
    """
    if not cells:
        return None
    given, found = cells[0][0].coefficients, TransferPrior.of(cells)
    return replace(found, coefficients=np.clip(found.coefficients, given / _TRUSTED, given * _TRUSTED))


def select_finalists(found: SearchResult, in_force: Trial | None, quality: Quality, most: int) -> list[Trial]:
    """Return the best of a search, best first, or what is in force if that is about as good."""
    sound = {t.genes: t for t in found.trials if t.status == "ok"}.values()
    cost_s = {t.genes: t.step_s * quality.factor(t.genes) for t in sound}
    least_s = min(cost_s.values())
    if in_force is not None and cost_s[in_force.genes] <= _LEAVE_ABOVE * least_s:
        return [in_force]
    best_first = sorted(sound, key=lambda t: cost_s[t.genes])
    return [t for t in best_first if cost_s[t.genes] <= _NEAR * least_s][:most]
