"""How soon each way of drawing plans finds a good one, by simulation alone, on the recorded cells of a data set.

``python benchmarks/planner/samplers.py DATASET --json LINES --md TABLE``    resumes from LINES; one line a trial

A trial is one way with one seed on one cell: model and network as recorded, and costs fitted to all that was run there.
Regret after N simulated candidates is by how much the best of them is slower to the same accuracy than the best plan
that any way has found on the cell. Plans that the bound of `LeastTimes` excludes are not simulated, and do not count,
where a way has it. Needs optuna: ``pip install optuna``, or the extra ``samplers`` of pliant-bench.
"""

import argparse
import contextlib
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import optuna

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, show

from pliant.netmodel import Overheads
from pliant.planner import Gene, Genome, LeastTimes, Quality, Space, named_genomes, search_predicted
from pliant.planner.compositions import searched_genes
from pliant.planner.predictor import Predictor
from pliant_bench.dataset import Dataset, load
from pliant_bench.dataset.measured import MeasuredCell, measured_cells

KEY = ("limit", "cell", "arm", "seed")
SEEDS, CANDIDATES, MARKS = (0, 1, 2), 100, (20, 50, 100)
LIMITS = (1.0, 1.5)
"""Limits of the ratio of steps."""
_ALIVE, _ASKED = 32, 8
"""Plans of the evolution that live, and of which the best is a parent."""


class Cell:
    """A cell whose plans are simulated with the costs that were fitted there, each once."""

    def __init__(self, dataset: Dataset, cell: MeasuredCell, limit: float) -> None:
        workload, topology = dataset.models[cell.model_id].workload, dataset.topologies[cell.topo_id].topology
        self.name, self.limit = cell.name, limit
        self.space = Space(workload, topology, Quality(budget=limit), combined=True)
        predictor = Predictor(cell.physics)
        predictor.fit(list(cell.trials))
        self._physics, self._coefficients = cell.physics, predictor.coefficients
        self._known: dict[str, float] = {}
        self.least_s = LeastTimes(workload, topology, Overheads().with_coefficients(predictor.coefficients))

    def cost_s(self, genes: Genome) -> float:
        """Return the predicted time of a step, times the ratio of steps."""
        plan = genes.plan()
        if plan.hash not in self._known:
            self._known[plan.hash] = float((self._physics.counts([plan], self._coefficients) @ self._coefficients)[0])
        return self._known[plan.hash] * self.space.quality.factor(genes)


class DoneError(Exception):
    """All candidates of a trial were simulated."""


Ask = Callable[[Genome], float]
Arm = Callable[[Cell, int, Ask], None]


def best_first(*, bound: bool, number: int = CANDIDATES) -> Arm:
    """Pliant's: builders, samples, and what is bred from the best, in four rounds."""

    def arm(cell: Cell, seed: int, ask: Ask) -> None:
        def step_s(plans: list[Genome]) -> list[float]:
            return [ask(genes) / cell.space.quality.factor(genes) for genes in plans]

        least_s = cell.least_s if bound else lambda _: 0.0
        seeds = named_genomes() | cell.space.baselines
        search_predicted(cell.space, step_s, seeds, number, seed, least_s=least_s)

    return arm


def at_random(cell: Cell, seed: int, ask: Ask) -> None:
    """As the space samples."""
    rng = random.Random(seed)
    while True:
        ask(cell.space.sample(rng))


def evolution(cell: Cell, seed: int, ask: Ask) -> None:
    """The oldest of 32 plans dies, a child of the best of 8 is born (Real et al., arXiv:1802.01548)."""
    rng = random.Random(seed)
    first = [genes for genes in cell.space.baselines.values() if genes in cell.space][:_ALIVE]
    first += [cell.space.sample(rng) for _ in range(_ALIVE - len(first))]
    alive = deque([(ask(genes), genes) for genes in first], maxlen=_ALIVE)
    while True:
        parents = sorted(rng.sample(list(alive), _ASKED), key=lambda each: each[0])
        mutated = cell.space.mutate(parents[0][1], rng)
        child = mutated if rng.random() < 0.75 else cell.space.cross(parents[0][1], parents[1][1], rng)
        alive.append((ask(child), child))


def of_optuna(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> Arm:
    """A sampler of optuna over the same settings, a family's own ones under the family."""

    def arm(cell: Cell, seed: int, ask: Ask) -> None:
        genes: dict[str, list[Gene]] = {}
        for gene in searched_genes():
            if Genome(gene) in cell.space:
                genes.setdefault(gene.family, []).append(gene)
        study = optuna.create_study(sampler=sampler(seed))
        for _ in range(3 * CANDIDATES):  # many that it asks for are no plans, or were asked for before
            trial = study.ask()
            try:
                found = _suggested(trial, cell, genes)
            except ValueError:
                found = None
            if found is None or found not in cell.space:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, float(np.log(ask(found))))

    return arm


def _suggested(trial: optuna.trial.Trial, cell: Cell, genes: dict[str, list[Gene]]) -> Genome:
    def gene(where: str) -> Gene:
        family = trial.suggest_categorical(f"{where} family", list(genes))
        of = genes[family]
        return of[trial.suggest_int(f"{where} {family}", 0, len(of) - 1)] if len(of) > 1 else of[0]

    sizes = cell.space.sizes
    small = trial.suggest_categorical("small apart", [False, True]) if sizes else False
    layers = tuple(
        (layer, gene(layer))
        for layer in cell.space.layers
        if trial.suggest_categorical(f"{layer} apart", [False, True])
    )
    return Genome(
        gene("base"),
        layers,
        bucket_bytes=int(2 ** trial.suggest_int("bucket", 19, 27)),
        chunk_bytes=int(2 ** trial.suggest_int("chunk", 18, 24, step=2)),
        at_end=trial.suggest_categorical("at_end", [False, True]),
        by_hosts=trial.suggest_categorical("by_hosts", [False, True]),
        sizes=((sizes[trial.suggest_int("size", 0, len(sizes) - 1)], gene("small")),) if small else (),
        cut=next(iter(cell.space.baselines.values())).cut,
    )


ARMS: dict[str, Arm] = {
    "best-first, with the bound": best_first(bound=True, number=2 * CANDIDATES),
    "best-first": best_first(bound=False),
    "evolution": evolution,
    "random": at_random,
    "optuna, TPE": of_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "optuna, NSGA-II": of_optuna(lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=20)),
    "optuna, random": of_optuna(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


def trial(cell: Cell, arm: str, seed: int) -> dict:
    """Return one line: the least cost after each simulated candidate that was lower than all before."""
    seen: dict[str, float] = {}
    curve: list[tuple[int, float, str]] = []

    def ask(genes: Genome) -> float:
        key = genes.plan().hash
        if key not in seen:
            if len(seen) == CANDIDATES:
                raise DoneError
            seen[key] = cell.cost_s(genes)
            if not curve or seen[key] < curve[-1][1]:
                curve.append((len(seen), seen[key], genes.summary))
        else:
            ask.again += 1
            if ask.again > 3 * CANDIDATES:
                raise DoneError  # it asks for nothing new
        return seen[key]

    ask.again = 0
    with contextlib.suppress(DoneError):
        ARMS[arm](cell, seed, ask)
    return {"limit": cell.limit, "cell": cell.name, "arm": arm, "seed": seed, "simulated": len(seen), "curve": curve}


def after(line: dict, number: int) -> float:
    """Return the least cost after so many candidates; the first if there is none so early."""
    return min((cost for k, cost, _ in line["curve"] if k <= number), default=line["curve"][0][1])


def _key(line: dict) -> tuple[float, str]:
    return line["limit"], line["cell"]


def table(lines: list[dict]) -> str:
    """Return the mean regret of each way over cells and seeds, its worst cell, and how many trials came to 1 %."""
    least: dict[tuple[float, str], float] = {}
    for line in lines:
        least[_key(line)] = min(least.get(_key(line), np.inf), line["curve"][-1][1])
    heads = " | ".join(f"after {number}" for number in MARKS)
    text = [f"| way | {heads} | worst cell | within 1 % |", "|" + "---|" * (len(MARKS) + 3)]
    for arm in ARMS:
        mine = [line for line in lines if line["arm"] == arm]
        if not mine:
            continue
        regrets = {n: [after(line, n) / least[_key(line)] - 1 for line in mine] for n in MARKS}
        keys = {_key(line) for line in mine}
        last = {c: [r for r, line in zip(regrets[MARKS[-1]], mine, strict=True) if _key(line) == c] for c in keys}
        worst = max(statistics.mean(each) for each in last.values())
        near = sum(regret <= 0.01 for regret in regrets[MARKS[-1]])
        means = " | ".join(f"{statistics.mean(regrets[n]):.1%}" for n in MARKS)
        text.append(f"| {arm} | {means} | {worst:.1%} | {near} of {len(mine)} |")
    return "\n".join(text) + "\n"


def cells(dataset: Dataset, limit: float) -> Iterator[Cell]:
    """Yield the measured cells, network by network."""
    for cell in sorted(measured_cells(dataset), key=lambda each: each.topo_id):
        yield Cell(dataset, cell, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lines, dataset = Lines(given.json, KEY), load(given.dataset)
    for seed in SEEDS:
        for limit in LIMITS:
            for cell in cells(dataset, limit):
                for arm in ARMS:
                    if not lines.has(limit, cell.name, arm, seed):
                        lines.add(trial(cell, arm, seed))
    every = list(lines.records.values())
    text = "".join(
        f"Limit {limit:g}:\n\n{table(of)}\n" for limit in LIMITS if (of := [x for x in every if x["limit"] == limit])
    )
    show(text, given.md)


if __name__ == "__main__":
    main()
