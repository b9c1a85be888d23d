"""Start of a search from the best prediction: one plan is put in force, and only better predicted ones are tried."""

import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.planner.genome import Genome
from pliant.planner.search import SearchLimits, SearchResult, StepTimeModel
from pliant.planner.space import Space
from pliant.planner.trials import Trial

__all__ = ["CHANGED", "Start", "challenge_steps", "is_changed"]

CHANGED = "the kept plan took another time than in the experience"
"""Reason for which a search from experience ends at once."""

_PAYS = 0.95
"""Share of the best measured time below which a plan must be predicted to be tried."""
_SHARE = 0.1
"""Share of the time since the run began that challengers may cost."""
_RACE = 1.2
"""A trial ends early when it is surely so many times slower than the best."""
_MOST_CHANGE = 1.3
"""Ratio of two times, or rates, from which on they are of different conditions."""
_ROUNDS, _ELITE, _KEPT = 2, 8, 40
"""Times that plans are bred from the best; plans that they come from; plans that are predicted again after a trial."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a search begins with."""

    first: Genome | None = None
    """Plan that is tried before all others, such as one that was kept earlier; None for the best predicted."""
    expected_s: float = 0.0
    """Step time that it took earlier; 0 if it is not known."""
    began_s: float = 0.0
    """Reading of the clock when the run began."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds since any moment."""


def is_changed(now: float, before: float) -> bool:
    """Say whether a time, or a rate, is no more what it was: beyond 1.3 times, either way."""
    return now > _MOST_CHANGE * before or before > _MOST_CHANGE * now


def challenge_steps(
    space: Space, model: StepTimeModel, limits: SearchLimits, start: Start
) -> Generator[tuple[Genome, float], Trial, SearchResult]:
    """Search as `search_steps` does, but begin with the best predicted plan and try few others.

    The plan with the least predicted time to accuracy comes first. After each trial the model learns, and predicts
    again. The next trial is of the plan that is predicted to be the best, if it needs at most 0.95 of the best measured
    time. The search ends when there is no such plan, or when challengers have cost a tenth of the time since the run
    began. A challenger costs the time of its trial, less what the best plan would have taken for its steps.

    Args:
        space: What may be chosen.
        model: Predicts, and learns.
        limits: Seeds, numbers of plans to draw and to try, and trials that are known.
        start: What it begins with.

    """
    known = list(limits.known)
    trials: list[Trial] = []
    if known:
        model.fit(known)
    end_s, spent_s = start.clock() + limits.max_seconds, 0.0
    plans = _plans(space, model, limits)
    tried = {trial.genes for trial in known}
    first = start.first if start.first is not None and start.first in space else None
    while True:
        everything, least_s = [*known, *trials], _least_s(space, [*known, *trials])
        wanted = first if first is not None else _best(space, model, plans, tried)
        if first is None and (wanted is None or _predicted_s(space, model, wanted) > _PAYS * least_s):
            stopped = "no plan was predicted to be 5 % better"
        elif len(trials) >= limits.max_trials:
            stopped = f"{limits.max_trials} trials were run"
        elif trials and (now_s := start.clock()) > end_s:
            stopped = f"{limits.max_seconds:g} s were over"
        elif trials and spent_s > _SHARE * (start.clock() - start.began_s):
            stopped = "challengers had cost a tenth of the time since the run began"
        else:
            stopped = ""
        if stopped or wanted is None:
            return _close(space, everything, stopped)
        is_expected, first = first is not None and start.expected_s > 0, None
        before_s, limit_s = start.clock(), _RACE * least_s / space.quality.factor(wanted)
        trial = yield wanted, np.inf if is_expected else limit_s
        trials.append(trial)
        tried.add(wanted)
        if is_expected and (trial.status != "ok" or is_changed(trial.step_s, start.expected_s)):
            return _close(space, [*known, *trials], CHANGED)
        if np.isfinite(least_s):
            cost_s = _cost_s(space, trial) if trial.steps_s else np.inf
            spent_s += (start.clock() - before_s) * max(0.0, 1 - least_s / cost_s)
        model.fit([*known, *trials])


def _plans(space: Space, model: StepTimeModel, limits: SearchLimits) -> list[Genome]:
    """Return the best predicted of seeds, samples, and what is bred from the best of them."""
    rng = random.Random(limits.seed)  # noqa: S311  not for secrets
    plans = dict.fromkeys(genes for genes in limits.seeds.values() if genes in space)
    plans |= dict.fromkeys(space.sample(rng) for _ in range(limits.num_drawn))
    for _ in range(_ROUNDS):
        elite = _best_first(space, model, list(plans))[:_ELITE]
        plans |= dict.fromkeys(space.mutate(rng.choice(elite), rng) for _ in range(limits.num_drawn // 4))
    return _best_first(space, model, list(plans))[:_KEPT]


def _best_first(space: Space, model: StepTimeModel, plans: Sequence[Genome]) -> list[Genome]:
    cost_s = dict(zip(plans, _costs(space, model, plans), strict=True))
    return sorted(plans, key=cost_s.__getitem__)


def _best(space: Space, model: StepTimeModel, plans: Sequence[Genome], tried: set[Genome]) -> Genome | None:
    left = [genes for genes in plans if genes not in tried and genes in space]
    return _best_first(space, model, left)[0] if left else None


def _predicted_s(space: Space, model: StepTimeModel, genes: Genome) -> float:
    return _costs(space, model, [genes])[0]


def _costs(space: Space, model: StepTimeModel, plans: Sequence[Genome]) -> list[float]:
    """Return predicted times per step of exact training, in s."""
    step_s = np.exp(model.predict(plans)[0]).tolist()
    return [s * space.quality.factor(genes) for s, genes in zip(step_s, plans, strict=True)]


def _cost_s(space: Space, trial: Trial) -> float:
    return trial.step_s * space.quality.factor(trial.genes)


def _least_s(space: Space, trials: Sequence[Trial]) -> float:
    return min((_cost_s(space, trial) for trial in trials if trial.status == "ok"), default=float("inf"))


def _close(space: Space, trials: Sequence[Trial], stopped: str) -> SearchResult:
    sound = [trial for trial in trials if trial.status == "ok"]
    if not sound:
        why = f"; the first because: {trials[0].reason}" if trials else ""
        raise RuntimeError(f"none of {len(trials)} trials came to an end{why}")
    best = min(sound, key=lambda trial: _cost_s(space, trial))
    return SearchResult(best=best.genes, trials=tuple(trials), stopped=stopped)
