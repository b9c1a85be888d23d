"""How good the plan is that a start from the best prediction keeps, by the recorded trials of a data set.

``python benchmarks/planner/start_regret.py benchmarks/results/dataset_2core_2026-11-29``

In each cell the search of `pliant.planner.challenge` may take any plan that was run there, and is told its recorded
step times; DDP in 16 bits counts as watched, where it was run. Regret is how much longer a step takes than under the
best of the cell's plans: of the first choice, as the simulator predicts it, of the plan that is kept at first, and of
the one that is kept once the search has gone on, with the trials that it found too costly, within ten minutes. The
same for the search by twelve trials, `pliant.planner.search`.
"""

import argparse
import random
import statistics
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from pliant.planner import BASELINES, Genome, SearchLimits, SearchResult, Space, Trial, search_steps
from pliant.planner.challenge import SearchStart, challenge_steps
from pliant.planner.predictor import Predictor
from pliant_bench.dataset import load
from pliant_bench.dataset.measured import MeasuredCell, measured_cells

TRIALS, STEPS, LATER_S = 12, 10, 600.0
WATCHED = BASELINES["ddp-bf16"]


@dataclass
class Recorded:
    """The plans of a cell, in the place of a space: a step's time is all that counts."""

    plans: list[Genome]
    quality = SimpleNamespace(factor=lambda _: 1.0)

    def __contains__(self, genes: Genome) -> bool:
        return genes in self.plans

    def sample(self, rng: random.Random) -> Genome:
        return rng.choice(self.plans)

    def mutate(self, _: Genome, rng: random.Random) -> Genome:
        return rng.choice(self.plans)

    def cross(self, *given: object) -> Genome:
        return self.sample(cast(random.Random, given[-1]))


class Clock:
    """Passes by the recorded steps."""

    now_s, steps = 0.0, 0

    def __call__(self) -> float:
        return self.now_s


def replay(
    asking: Generator[tuple[Genome, float], Trial, SearchResult],
    of: dict[Genome, Trial],
    clock: Clock,
    leaves_s: float = 0.0,
):
    """Answer a search with recorded trials; return its result and the plans that it tried."""
    tried: list[Genome] = []
    try:
        genes, _ = next(asking)
        while True:
            tried.append(genes)
            clock.steps += STEPS
            clock.now_s += STEPS * of[genes].step_s + leaves_s * genes.base.between_steps
            genes, _ = asking.send(of[genes])
    except StopIteration as end:
        return end.value, tried


def judge(cell: MeasuredCell) -> dict[str, float]:
    of = {trial.genes: trial for trial in cell.trials}
    space = cast(Space, Recorded(list(of)))
    best_s = min(trial.step_s for trial in of.values())
    known = [of[WATCHED]] if WATCHED in of else []
    clock = Clock()
    clock.now_s = 3 * known[0].step_s if known else 0.0
    limits = SearchLimits(max_trials=TRIALS, seeds={str(k): g for k, g in enumerate(of)}, num_drawn=1, known=known)
    leaves_s = cell.physics.leaving_s()
    start = SearchStart(clock=clock, steps=lambda: clock.steps, leaving_s=leaves_s)
    kept, tried = replay(challenge_steps(space, Predictor(cell.physics), limits, start), of, clock, leaves_s)
    later = kept
    while later.resumes_s < LATER_S:
        clock.now_s = max(clock.now_s, later.resumes_s)
        again = replace(limits, known=[*(t for t in later.trials if t.genes != later.best), of[later.best]])
        resumed = replace(start, spent_s=later.spent_s)
        later, more = replay(challenge_steps(space, Predictor(cell.physics), again, resumed), of, clock, leaves_s)
        tried += more
    of_many = SearchLimits(max_trials=TRIALS, batch=4, num_seeds=4, seeds=limits.seeds, num_drawn=1, num_candidates=100)
    many, _ = replay(search_steps(space, Predictor(cell.physics), of_many), of, Clock())
    first = min(of, key=lambda genes: Predictor(cell.physics).simulate([genes])[0])
    return {
        "first": of[first].step_s / best_s - 1,
        "kept": of[kept.best].step_s / best_s - 1,
        "later": of[later.best].step_s / best_s - 1,
        "trials": len(tried),
        "twelve": of[many.best].step_s / best_s - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    given = parser.parse_args()
    rows = {cell.name: judge(cell) for cell in measured_cells(load(given.dataset))}
    print("| cell | plans tried | first choice | kept at first | kept later | kept of twelve trials |")
    print("|---|---|---|---|---|---|")
    means = {key: statistics.mean(row[key] for row in rows.values()) for key in next(iter(rows.values()))}
    for name, row in [*rows.items(), ("mean", means)]:
        regrets = " | ".join(f"{row[key]:.1%}" for key in ("first", "kept", "later", "twelve"))
        print(f"| {name} | {row['trials']:.3g} | {regrets} |")


if __name__ == "__main__":
    main()
