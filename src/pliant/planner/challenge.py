"""Start of a search from the best prediction: one plan is put in force, and only better predicted ones are tried."""

import math
import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.planner.genome import Genome
from pliant.planner.search import SearchLimits, SearchResult, StepTimeModel
from pliant.planner.space import Space
from pliant.planner.trials import Trial

__all__ = ["CHANGED", "SHARE", "SearchStart", "challenge_steps", "is_changed"]

CHANGED = "the kept plan took another time than in the experience"
"""Reason for which a search from experience ends at once."""
SHARE = 0.1
"""Share of the time since a run began that challengers, and turns of the best plans, may cost."""

_PAYS = 0.95
"""Share of the best measured time below which a plan must be predicted to be tried."""
_TIE, _TIES = 1.05, 2
"""Ratio of predicted times within which plans of two families are not told apart; trials of such plans."""
_LATER = 1.5
"""Times of the time since the run began that pass at least until a search goes on, since predictions change by then."""
_EARNING_STEPS = 100
"""Steps in which a plan may earn by what it saves what its trial costs."""
_RACE = 1.2
"""A trial ends early when it is surely so many times slower than the best."""
_MOST_CHANGE = 1.3
"""Ratio of two times, or rates, from which on they are of different conditions."""
_TRIAL_STEPS = 12
"""Steps of a trial, about."""
_NEAR = 1.1
"""Ratio of predicted times within which the plan is tried whose trial costs less: predictions err by as much."""
_ROUNDS, _ELITE, _KEPT = 2, 8, 40
"""Times that plans are bred from the best; plans that they come from; plans that are predicted again after a trial."""


@dataclass(frozen=True, kw_only=True)
class SearchStart:
    """Start of a search: the first plan, and the clock that its cost is taken by."""

    first: Genome | None = None
    """Plan that is tried before all others, such as one that was kept earlier; None for the best predicted."""
    expected_s: float = 0.0
    """Step time that it took earlier; 0 if it is not known."""
    began_s: float = 0.0
    """Reading of the clock when the run began."""
    leaving_s: float = 0.0
    """Time of the mean of weights and optimizer state with which ranks leave a plan that keeps them apart."""
    spent_s: float | None = None
    """Time that trials have cost in an earlier search under the same conditions, whose trials are known; None if there
    was none."""
    prepared_s: float = 0.0
    """Time that measurements and predictions have cost before."""
    reference: Genome | None = None
    """Plan that is tried where no other is predicted to be better, so that a wrong prediction is found out."""
    fits: Callable[[Genome], bool] = lambda _: True
    """Whether there is room for the trial of a plan."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds since any moment."""
    steps: Callable[[], int] = lambda: 0
    """Steps of training since any moment, those of trials too."""
    tell: Callable[[SearchResult], None] = lambda _: None
    """Called after each trial with what is known by then."""


def is_changed(now: float, before: float) -> bool:
    """Say whether a time, or a rate, is no more what it was: beyond 1.3 times, either way."""
    return now > _MOST_CHANGE * before or before > _MOST_CHANGE * now


def challenge_steps(
    space: Space, model: StepTimeModel, limits: SearchLimits, start: SearchStart
) -> Generator[tuple[Genome, float], Trial, SearchResult]:
    """Search as `search_steps` does, but begin with the best predicted plan and try few others.

    The plan with the least predicted time to accuracy comes first. After each trial the model learns, and predicts
    again. Other forms of an exchange that was tried, such as with other buckets, are taken to be as far off as it was.
    The next trial is of the plan that is predicted to be the best, if it needs at most 0.95 of the best measured time.
    Of plans within 1.1 of it, the one is tried whose trial costs least: under a plan that keeps ranks apart it ends
    with a mean of their weights. Where there is no such plan, up to two that the model cannot tell from the best are
    tried: of another family, and predicted within 1.05 of it; not so where a plan was kept earlier. So one plan is
    tried at least, without which a wrong prediction would never be found out.

    The search ends when nothing of this is left. It ends for now when challengers would have cost a tenth of the time
    since the run began, less what the next one is predicted to save in 100 steps. A challenger costs the time of its
    trial, with the means of weights, less what the best plan would have taken for its steps. For one that is predicted
    to save nothing, measurements and predictions count too. Where there is a reference, it is tried in place of plans
    that cannot be told from the best, if nothing was by then.

    Where there is a reference, the plan in force is timed again before another is kept: what has changed may be over.

    Args:
        space: What may be chosen.
        model: Predicts, and learns.
        limits: Seeds, numbers of plans to draw and to try, and trials that are known.
        start: What it begins with.

    """
    book, asked_s = _Book(space, model, limits, start), start.clock()
    plans = _plans(space, model, limits)
    book.prepared_s += start.clock() - asked_s
    stopped, resumes_s = yield from _challenge(book, plans, space, limits, start)
    if start.reference is not None and limits.known and book.best != (in_force := limits.known[-1].genes):
        book.replace((yield in_force, book.limit_s(in_force)))
    return book.close(stopped, resumes_s)


def _challenge(
    book: "_Book", plans: Sequence[Genome], space: Space, limits: SearchLimits, start: SearchStart
) -> Generator[tuple[Genome, float], Trial, tuple[str, float]]:
    """Try plans; return why it ended, and the time since the run began from which on to go on."""
    first = start.first if start.first is not None and start.first in space else None
    end_s, ties = math.inf, 0 if first is not None else _TIES
    while True:
        least_s, tried = book.least_s, start.spent_s is not None or bool(book.num_run)
        wanted = first or book.cheapest_of(plans, _PAYS * least_s)
        if wanted is None and ties and (tried or start.reference is None):
            ties, wanted = ties - 1, book.tie_in(plans)
        if wanted is None and not tried and start.reference is not None:
            wanted = book.cheapest_of([start.reference], math.inf)
        if wanted is None:
            return "no plan was predicted to be 5 % better", math.inf
        if book.num_run >= limits.max_trials:
            return f"{limits.max_trials} trials were run", math.inf
        if tried and start.clock() > end_s:
            return f"{limits.max_seconds:g} s were over", math.inf
        loss_s = book.loss_s(wanted) if tried else -book.spent_s
        cost_s = book.spent_s + loss_s + (book.prepared_s if loss_s > 0 else 0.0)
        if cost_s > SHARE * (start.clock() - start.began_s):
            resumes_s = max(cost_s / SHARE, _LATER * (start.clock() - start.began_s))
            return "challengers would have cost more than a tenth of the time since the run began", resumes_s
        expected_s, first = start.expected_s if first is not None else 0.0, None
        before_s, before, predicted_s = start.clock(), start.steps(), book.predicted_s(wanted)
        trial = yield wanted, math.inf if expected_s else book.limit_s(wanted)
        if expected_s and trial.status == "ok" and is_changed(trial.step_s, expected_s):
            trial = yield wanted, math.inf  # the first steps of a run may have waited for anything
        book.enter(trial, predicted_s)
        end_s = min(end_s, start.clock() + limits.max_seconds)  # the first one is in force, and costs nothing
        if expected_s and (trial.status != "ok" or is_changed(trial.step_s, expected_s)):
            return CHANGED, math.inf
        if math.isfinite(least_s):
            book.spent_s += max(0.0, start.clock() - before_s - (start.steps() - before) * least_s)
        if math.isfinite(book.least_s):
            start.tell(book.close("it was interrupted"))


class _Book:
    """Trials with what was predicted of them, and what follows."""

    def __init__(self, space: Space, model: StepTimeModel, limits: SearchLimits, start: SearchStart) -> None:
        self._space, self._model, self._start = space, model, start
        self._trials = list(limits.known)
        self._predicted_s = _step_s(model, [trial.genes for trial in self._trials])
        self.num_run, self.spent_s, self.prepared_s = 0, start.spent_s or 0.0, start.prepared_s
        if self._trials:
            model.fit(self._trials)

    def enter(self, trial: Trial, predicted_s: float) -> None:
        self._trials.append(trial)
        self._predicted_s.append(predicted_s)
        self.num_run += 1
        self._model.fit(self._trials)

    def replace(self, trial: Trial) -> None:
        """Let a trial stand in the place of an earlier one of its plan."""
        self._trials = [trial if each.genes == trial.genes else each for each in self._trials]
        self._model.fit(self._trials)

    def predicted_s(self, genes: Genome) -> float:
        return self._predicted([genes])[0]

    def cost_s(self, genes: Genome) -> float:
        return self._costs([genes])[0]

    def _costs(self, plans: Sequence[Genome]) -> list[float]:
        return _costs(self._space, plans, self._predicted(plans))

    def _predicted(self, plans: Sequence[Genome]) -> list[float]:
        """Return predicted step times; where an exchange was tried in another form, as far off as that one was."""
        sound = self._sound
        found_s = _step_s(self._model, [*(trial.genes for trial in sound), *plans])
        off = {trial.genes.base: trial.step_s / s for trial, s in zip(sound, found_s, strict=False)}
        return [s * off.get(genes.base, 1.0) for genes, s in zip(plans, found_s[len(sound) :], strict=True)]

    def cheapest_of(self, plans: Sequence[Genome], most_s: float) -> Genome | None:
        """Return the plan whose trial costs least, of those near the best predicted that need no more than `most_s`."""
        tried = {trial.genes for trial in self._trials}
        left = [genes for genes in plans if genes not in tried and genes in self._space and self._start.fits(genes)]
        costs = dict(zip(left, self._costs(left), strict=True))
        most_s = min(most_s, _NEAR * min(costs.values(), default=0.0))
        near = [genes for genes, cost_s in costs.items() if cost_s <= most_s]
        return min(near, key=lambda genes: _TRIAL_STEPS * costs[genes] + self._leaving_s(genes), default=None)

    def tie_in(self, plans: Sequence[Genome]) -> Genome | None:
        """Return a plan of a kind that was not tried, and that is not told from the best that was."""
        best = min(self._sound, key=self._measured_s, default=None)
        kinds = {_kind(trial.genes) for trial in self._trials}
        rivals = [genes for genes in plans if _kind(genes) not in kinds]
        if best is None:
            return None
        (cost_s,) = _costs(self._space, [best.genes], _step_s(self._model, [best.genes]))  # as those of the rivals
        return self.cheapest_of(rivals, _TIE * cost_s)

    def loss_s(self, genes: Genome) -> float:
        """Return what a trial is predicted to cost, less what is saved while it earns that."""
        in_force, longer_s = self._trials[-1].genes, self.cost_s(genes) - self.least_s
        means_s = self._leaving_s(in_force) + self._leaving_s(genes)
        return means_s + (_TRIAL_STEPS if longer_s > 0 else _EARNING_STEPS) * longer_s

    def _leaving_s(self, genes: Genome) -> float:
        return self._start.leaving_s if genes.base.between_steps else 0.0

    @property
    def least_s(self) -> float:
        return min((self._measured_s(trial) for trial in self._sound), default=math.inf)

    def limit_s(self, genes: Genome) -> float:
        return _RACE * self.least_s / self._space.quality.factor(genes)

    @property
    def best(self) -> Genome:
        if not self._sound:
            why = f"; the first because: {self._trials[0].reason}" if self._trials else ""
            raise RuntimeError(f"none of {len(self._trials)} trials came to an end{why}")
        return min(self._sound, key=self._measured_s).genes

    def close(self, stopped: str, resumes_s: float = math.inf) -> SearchResult:
        return SearchResult(
            best=self.best,
            trials=tuple(self._trials),
            stopped=stopped,
            predicted_s=tuple(self._predicted_s),
            spent_s=self.spent_s,
            prepared_s=self.prepared_s,
            resumes_s=resumes_s,
        )

    @property
    def _sound(self) -> list[Trial]:
        return [trial for trial in self._trials if trial.status == "ok"]

    def _measured_s(self, trial: Trial) -> float:
        return trial.step_s * self._space.quality.factor(trial.genes)


def _kind(genes: Genome) -> tuple[str, bool]:
    return genes.base.family, genes.by_hosts


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
    cost_s = dict(zip(plans, _costs(space, plans, _step_s(model, plans)), strict=True))
    return sorted(plans, key=cost_s.__getitem__)


def _costs(space: Space, plans: Sequence[Genome], step_s: Sequence[float]) -> list[float]:
    """Return times per step of exact training, in s, of plans whose steps take so long."""
    return [s * space.quality.factor(genes) for genes, s in zip(plans, step_s, strict=True)]


def _step_s(model: StepTimeModel, plans: Sequence[Genome]) -> list[float]:
    """Return step times as the model predicts them, in s."""
    return np.exp(model.predict(plans)[0]).tolist() if plans else []
