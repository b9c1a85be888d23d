"""Choose by at most so many trials: predict many plans, run few, learn, and again."""

import math
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pliant.planner.baselines import BASELINES
from pliant.planner.genome import Genome
from pliant.planner.space import Space
from pliant.planner.trials import Measure, Trial

__all__ = ["SearchLimits", "SearchResult", "StepTimeModel", "search", "search_steps"]

_RANDOM_SHARE = 0.2
"""Share of a later batch that is drawn at random, so that errors of the model are found."""
_LOWER = 1.0
"""Standard deviations below the mean at which a candidate is judged."""
_ALIKE = 0.1
"""Penalty, in the logarithm of time, of a candidate equal to one already in the batch: AutoSync's rule."""
_RACE = 1.2
"""A trial ends early when it is surely so many times slower than the best."""
_ELITE = 10
_LEAST_GAIN = 0.005
_PATIENCE = 3


class StepTimeModel(Protocol):
    """Predicts step times, and learns from trials."""

    def fit(self, trials: Sequence[Trial]) -> None:
        """Learn from all trials so far."""
        ...

    def predict(self, candidates: Sequence[Genome]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithm of step times in s, (num,), and its standard deviation, (num,)."""
        ...

    def features(self, candidates: Sequence[Genome]) -> NDArray[np.float64]:
        """Return what plans are compared by, (num, num_features)."""
        ...


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """Limits of a search: when it ends, and how wide it is."""

    max_trials: int = 200
    """Plans to run at most, builders included."""
    max_seconds: float = float("inf")
    """No trial begins later than that."""
    batch: int = 8
    """Plans picked between two fits."""
    num_candidates: int = 500
    """Plans that the model is asked about for each batch."""
    seeds: Mapping[str, Genome] = field(default_factory=lambda: BASELINES)
    """Plans that are looked at before all others; those outside the space are left out."""
    num_drawn: int = 100
    """Plans drawn from the space that are looked at beside them."""
    num_seeds: int = 8
    """So many of both, the best predicted that differ from each other, are run first; 0 for all."""
    known: Sequence[Trial] = ()
    """Trials that were made before, under the same conditions: they are learned from and compared, and cost nothing."""
    seed: int = 0
    """Seed of all random numbers."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Outcome of a search."""

    best: Genome
    trials: tuple[Trial, ...]
    """In the order in which they were run."""
    stopped: str
    """Why it ended."""
    predicted_s: tuple[float, ...] = ()
    """Step times that were predicted before each trial; empty where they were not kept."""
    spent_s: float = 0.0
    """Time that trials have cost, beyond that of their steps under the best plan."""
    prepared_s: float = 0.0
    """Time that measurements and predictions have cost."""
    resumes_s: float = math.inf
    """Time since the run began from which on the next trial is affordable; inf if none is wanted."""


def search(
    space: Space,
    model: StepTimeModel,
    measure: Measure,
    limits: SearchLimits = SearchLimits(),
    *,
    tell: Callable[[Trial], None] = lambda _: None,
) -> SearchResult:
    """Find the plan with the least time to accuracy: measured step time times the known ratio of steps.

    Args:
        space: What may be chosen.
        model: Predicts, and learns.
        measure: Runs a plan.
        limits: When to end.
        tell: Called after each trial.

    Raises:
        RuntimeError: Every trial has failed; the message has the first reason.

    """
    asking = search_steps(space, model, limits)
    try:
        genes, give_up_above_s = next(asking)
        while True:
            trial = measure(genes, give_up_above_s=give_up_above_s)
            tell(trial)
            genes, give_up_above_s = asking.send(trial)
    except StopIteration as end:
        return end.value


def search_steps(
    space: Space, model: StepTimeModel, limits: SearchLimits
) -> Generator[tuple[Genome, float], Trial, SearchResult]:
    """Search as a generator: yield plans with the step time above which a trial may end; receive trials.

    First come the best predicted of baselines and samples. Then, batch after batch: candidates come from the best so
    far by mutation and crossover, and from the space at random. Each batch is picked one by one, the least in lower
    confidence bound plus likeness to those picked; a fifth of a later one is random. After each batch the model learns.
    """
    rng = random.Random(limits.seed)  # noqa: S311  not for secrets
    book = _Book(space)
    end_s = time.monotonic() + limits.max_seconds
    for trial in limits.known:
        book.enter(trial)
    if limits.known:
        model.fit(book.trials)
    drawn = [space.sample(rng) for _ in range(limits.num_drawn)]
    first = [g for g in dict.fromkeys([*limits.seeds.values(), *drawn]) if g in space and g not in book.known]
    candidates = first or _candidates(space, (), book.known, limits.num_candidates, rng)
    number, at_random = (limits.num_seeds or len(first), 0.0) if first else (limits.batch, _RANDOM_SHARE)
    poor_batches = 0
    while candidates:
        mean, deviation = _costs(model, space, candidates)
        bound = mean - _LOWER * deviation
        gain = np.log(book.least) - float(np.min(bound))
        poor_batches = poor_batches + 1 if gain < _LEAST_GAIN else 0
        if poor_batches == _PATIENCE:
            return book.close(f"no plan is expected to be {_LEAST_GAIN:.1%} better")
        for i in _pick(model.features(candidates), bound, number, at_random, rng):
            if len(book.trials) >= limits.max_trials + len(limits.known):
                return book.close(f"{limits.max_trials} trials were run")
            if time.monotonic() > end_s:
                return book.close(f"{limits.max_seconds:g} s were over")
            book.enter((yield candidates[i], book.limit_s(candidates[i])))
        model.fit(book.trials)
        candidates = _candidates(space, book.elite, book.known, limits.num_candidates, rng)
        number, at_random = limits.batch, _RANDOM_SHARE
    return book.close("every plan in the space was run")


class _Book:
    """Trials, and what follows from them."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.trials: list[Trial] = []
        self.known: set[Genome] = set()

    def enter(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.known.add(trial.genes)

    @property
    def sound(self) -> list[Trial]:
        return sorted((t for t in self.trials if t.status == "ok"), key=self._cost)

    @property
    def elite(self) -> list[Genome]:
        return [trial.genes for trial in self.sound[:_ELITE]]

    @property
    def least(self) -> float:
        return self._cost(self.sound[0]) if self.sound else float("inf")

    def limit_s(self, genes: Genome) -> float:
        return _RACE * self.least / self._space.quality.factor(genes)

    def close(self, stopped: str) -> SearchResult:
        if not self.sound:
            why = f"; the first because: {self.trials[0].reason}" if self.trials else ""
            raise RuntimeError(f"none of {len(self.trials)} trials came to an end{why}")
        return SearchResult(best=self.sound[0].genes, trials=tuple(self.trials), stopped=stopped)

    def _cost(self, trial: Trial) -> float:
        return trial.step_s * self._space.quality.factor(trial.genes)


def _costs(
    model: StepTimeModel, space: Space, plans: Sequence[Genome]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithm of predicted time per step of exact training, and its standard deviation."""
    mean, deviation = model.predict(plans)
    return mean + np.log([space.quality.factor(genes) for genes in plans]), deviation


def _candidates(
    space: Space, elite: Sequence[Genome], known: set[Genome], number: int, rng: random.Random
) -> list[Genome]:
    """Half from the best by mutation or crossover, half from the space at random; none that was run."""
    made: dict[Genome, None] = {}
    for turn in range(2 * number):  # a small space yields fewer
        if elite and turn % 2:
            parent = rng.choice(elite)
            child = space.cross(parent, rng.choice(elite), rng) if turn % 8 == 1 else space.mutate(parent, rng)
        else:
            child = space.sample(rng)
        if child not in known:
            made[child] = None
        if len(made) == number:
            break
    return list(made)


def _pick(
    features: NDArray[np.float64], bound: NDArray[np.float64], number: int, at_random: float, rng: random.Random
) -> list[int]:
    """Pick plans with low predicted times that differ from each other, a share of them at random."""
    scaled = (features - features.mean(0)) / (features.std(0) + 1e-12)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True) + 1e-12
    alike = np.zeros(len(bound))
    left = list(range(len(bound)))
    picked: list[int] = []
    while left and len(picked) < number:
        at = rng.choice(left) if rng.random() < at_random else min(left, key=lambda i: bound[i] + _ALIKE * alike[i])
        left.remove(at)
        picked.append(at)
        alike = np.maximum(alike, scaled @ scaled[at])
    return picked
