"""How soon each way of searching finds a good plan, on cells whose every plan was run (`pliant collect --plans 0`).

``python benchmarks/planner/curves.py DATASET --budget 1.1 --json LINES --md out.md``    resumes from LINES

A search asks for plans one by one and is told what was measured. Regret after t trials is by how much the best plan so
far is slower to the same accuracy than the best of all plans in the table; the area is its mean over the first 40
trials. Ten seeds a cell; from the least to the most over seeds. One line of LINES is one search.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import optuna
from rankers import Ranker

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, show

from pliant.planner import BASELINES, Gene, Genome, Quality, SearchLimits, Space, Trial, search_steps
from pliant.planner.predictor import Predictor
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant_bench.dataset import Dataset, load
from pliant_bench.dataset.measured import MeasuredCell, measured_cells

KEY = ("budget", "model", "network", "arm", "seed")
SEEDS, TRIALS = 10, 40
WITHIN = (0.05, 0.02)
_EXACT = Gene("exact", {"bits": 32})


@dataclass(frozen=True)
class Table:
    """A cell whose every plan was run."""

    cell: MeasuredCell
    space: Space
    cost_s: dict[Genome, float]
    """Measured step time, times the ratio of steps."""
    trials: dict[Genome, Trial]

    @property
    def best_s(self) -> float:
        return min(self.cost_s.values())


class Listed(Space):
    """The plans of a space that were run."""

    known: frozenset[Genome] = frozenset()

    def __contains__(self, genes: Genome) -> bool:
        return genes in self.known


Asked = Iterator[Genome]
Arm = Callable[[Table, int, dict[Genome, float]], Asked]
"""Table, seed, and what has been told so far, which grows -> the plans that are asked for."""


def at_random(table: Table, seed: int, _: dict[Genome, float]) -> Asked:
    """Any plan of the table, alike."""
    order = list(table.cost_s)
    random.Random(seed).shuffle(order)
    yield from order


def hierarchical(table: Table, seed: int, _: dict[Genome, float]) -> Asked:
    """As our space samples: families alike, then settings alike."""
    rng = random.Random(seed)
    seen: set[Genome] = set()
    while len(seen) < len(table.cost_s):
        genes = table.space.sample(rng)
        if genes not in seen:
            seen.add(genes)
            yield genes


def of_model(model: Callable[[Table, int], object], *, begin: str) -> Arm:
    """Our search, with a model of step times; it begins at random, with all builders, or, as "auto", with the best
    predicted of builders and samples."""

    def arm(table: Table, seed: int, _: dict[Genome, float]) -> Asked:
        first = {
            "random": {"seeds": {}, "num_drawn": 0},
            "builders": {"num_drawn": 0, "num_seeds": 0},
            "best": {},
        }[begin]
        limits = SearchLimits(seed=seed, max_trials=TRIALS, **first)
        asking = search_steps(table.space, model(table, seed), limits)
        try:
            genes, _limit = next(asking)
            while True:
                yield genes
                genes, _limit = asking.send(table.trials[genes])
        except StopIteration:
            return

    return arm


def simulator_alone(table: Table, seed: int, _: dict[Genome, float]) -> Asked:
    """By the simulator's order, as it is given."""
    genes = list(table.cost_s)
    log_s = Predictor(table.cell.physics, seed).simulate(genes)
    ratio = [table.space.quality.factor(g) for g in genes]
    yield from (genes[k] for k in np.argsort(log_s + np.log(ratio)))


class RankNet:
    """AutoSync's RankNet in the place of our predictor."""

    def __init__(self, table: Table, seed: int) -> None:
        self._seed, self._features = seed, Predictor(table.cell.physics, seed)
        self._ranker: Ranker | None = None

    def fit(self, trials: list[Trial]) -> None:
        sound = [t for t in trials if t.status == "ok"]
        if len(sound) > 2:
            self._ranker = Ranker(32, self._seed)
            log_s = np.log([t.step_s for t in sound])
            self._ranker.fit(self.features([t.genes for t in sound]), log_s, np.zeros(len(sound), dtype=int))

    def predict(self, candidates: list[Genome]) -> tuple[np.ndarray, np.ndarray]:
        if self._ranker is None:
            return np.zeros(len(candidates)), np.ones(len(candidates))
        return self._ranker.predict(self.features(candidates)), np.zeros(len(candidates))

    def features(self, candidates: list[Genome]) -> np.ndarray:
        return self._features.features(candidates)


def of_cell(table: Table, seed: int) -> Predictor:
    """Physics, coefficients and residual."""
    return Predictor(table.cell.physics, seed)


def of_optuna(sampler: Callable[[int], optuna.samplers.BaseSampler], *, sizes_only: bool) -> Arm:
    """A sampler of optuna, over all settings, or over bucket size and hierarchy as Horovod's and BAGUA's tuners."""

    def arm(table: Table, seed: int, told: dict[Genome, float]) -> Asked:
        study = optuna.create_study(sampler=sampler(seed))
        plans = [g for g in table.cost_s if not sizes_only or (g.base == _EXACT and not g.at_end)]
        knobs = {
            "gene": sorted({str((g.base.family, sorted(g.base.settings.items()))) for g in plans}),
            "bucket": sorted({g.bucket_bytes for g in plans}),
            "at_end": sorted({g.at_end for g in plans}),
            "by_hosts": sorted({g.by_hosts for g in plans}),
        }
        place = {_key(g): g for g in plans}
        for _ in range(4 * TRIALS):
            trial = study.ask()
            asked = tuple(trial.suggest_categorical(name, values) for name, values in knobs.items())
            genes = (
                place.get(asked) or place.get((asked[0], 0, False, asked[3])) or place.get((asked[0], 0, False, False))
            )
            if genes is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            yield genes  # even if it was run before: these samplers ask for a plan again
            study.tell(trial, np.log(told[genes]))

    return arm


def _key(g: Genome) -> tuple[str, int, bool, bool]:
    return str((g.base.family, sorted(g.base.settings.items()))), g.bucket_bytes, g.at_end, g.by_hosts


ARMS: dict[str, Arm] = {
    "random": at_random,
    "hierarchical random": hierarchical,
    "GP over bucket size and hierarchy": of_optuna(lambda s: optuna.samplers.GPSampler(seed=s), sizes_only=True),
    "TPE over all": of_optuna(lambda s: optuna.samplers.TPESampler(seed=s), sizes_only=False),
    "evolutionary (NSGA-II) over all": of_optuna(
        lambda s: optuna.samplers.NSGAIISampler(seed=s, population_size=8), sizes_only=False
    ),
    "simulator's order, uncalibrated": simulator_alone,
    "our search, RankNet inside, at random first": of_model(RankNet, begin="random"),
    "our search, RankNet inside, builders first": of_model(RankNet, begin="builders"),
    "our search, builders first": of_model(of_cell, begin="builders"),
    "our search, best predicted first": of_model(of_cell, begin="best"),
}


def curve(table: Table, arm: Arm, seed: int) -> list[float]:
    """Return the regret after each trial."""
    told: dict[Genome, float] = {}
    least, regrets = max(table.cost_s.values()), list[float]()
    for genes in arm(table, seed, told):
        told[genes] = table.cost_s[genes]
        least = min(least, told[genes])
        regrets.append(least / table.best_s - 1)
        if len(regrets) == TRIALS:
            break
    return regrets + [regrets[-1]] * (TRIALS - len(regrets))


def _quality(budget: float) -> Quality:
    """Return the limit under which `pliant collect` has drawn the plans."""
    return Quality(budget=budget, ratios=MEASURED_STEPS_RATIO)


def table_of(dataset: Dataset, cell: MeasuredCell, budget: float, plans: set[Genome]) -> Table:
    """Return what was run of these plans: a data set has one of the genomes that are the same plan."""
    workload, network = dataset.models[cell.model_id].workload, dataset.topologies[cell.topo_id]
    space = Listed(workload, network.topology, _quality(budget))
    trial_of = {trial.genes.plan().hash: trial for trial in cell.trials}
    hashes = {genes: genes.plan().hash for genes in sorted(plans, key=str)}
    kept = {genes: replace(trial_of[each], genes=genes) for genes, each in hashes.items() if each in trial_of}
    space.known = frozenset(kept)
    cost_s = {g: t.step_s * space.quality.factor(g) for g, t in kept.items()}
    return Table(cell=cell, space=space, cost_s=cost_s, trials=kept)


def tables(dataset: Dataset, budget: float) -> list[Table]:
    """Return the cells of which every plan that exchanges all layers alike was run."""
    found = []
    for cell in measured_cells(dataset):
        workload, network = dataset.models[cell.model_id].workload, dataset.topologies[cell.topo_id]
        whole = set(Space(workload, network.topology, _quality(budget)).enumerate())
        table = table_of(dataset, cell, budget, whole | set(BASELINES.values()))
        if len(whole - table.cost_s.keys()) <= 0.02 * len(whole):
            found.append(table)
    if not found:
        raise ValueError(f"no cell has every plan within the budget of {budget}; collect one with --plans 0.")
    return found


def judge(table: Table, budget: float, lines: Lines) -> list[dict]:
    """Return the lines of a cell; a search that has none is made, and gets one."""
    rows, cell = list[dict](), table.cell
    for name, arm in ARMS.items():
        for seed in range(SEEDS):
            key = (budget, cell.model_id, cell.topo_id, name, seed)
            if not lines.has(*key):
                about = {**dict(zip(KEY, key, strict=True)), "cell": cell.name}
                lines.add({**about, "regrets": curve(table, arm, seed)})
            rows.append(lines.records[key])
        area = statistics.mean(statistics.mean(r["regrets"]) for r in rows if r["arm"] == name)
        print(f"{cell.name}, {len(table.cost_s)} plans: {name}: {area:.3f}", flush=True)
    return rows


def text_of(found: list[Table], rows: list[dict]) -> str:
    lines = [
        "| cell | arm | area under regret | after 10 | after 40 | trials to 5 % | to 2 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for table in found:
        for arm in ARMS:
            mine = [r["regrets"] for r in rows if r["arm"] == arm and r["cell"] == table.cell.name]
            areas = [statistics.mean(r) for r in mine]
            reached = [_reached(mine, share) for share in WITHIN]
            after = [f"{statistics.mean(r[k - 1] for r in mine):.1%}" for k in (10, TRIALS)]
            spread = f"{statistics.mean(areas):.3f} ({min(areas):.3f}-{max(areas):.3f})"
            lines.append(f"| {table.cell.name} | {arm} | {spread} | {' | '.join(after)} | {' | '.join(reached)} |")
    lines += [
        "",
        "| cell | plans | best | its time to accuracy | best builder | worst builder |",
        "|---|---|---|---|---|---|",
    ]
    for table in found:
        best = min(table.cost_s, key=table.cost_s.__getitem__)
        builders = {name: table.cost_s[g] / table.best_s for name, g in BASELINES.items() if g in table.cost_s}
        low, high = (f(builders, key=builders.__getitem__) for f in (min, max))
        lines.append(
            f"| {table.cell.name} | {len(table.cost_s)} | {best.base.family} {dict(best.base.settings)} | "
            f"{table.best_s:.4f} s | {low} {builders[low]:.2f}x | {high} {builders[high]:.2f}x |"
        )
    return "\n".join(lines) + "\n"


def fixed(dataset: Dataset, budget: float) -> str:
    """Return what each builder costs in its worst cell, over what 40 trials of a search find among all that was run."""
    slower: dict[str, dict[str, float]] = {}
    quality = _quality(budget)
    for cell in measured_cells(dataset):
        within = {t.genes for t in cell.trials if all(quality.admits(gene) for gene in t.genes.genes)}
        table = table_of(dataset, cell, budget, within)
        chosen_s = statistics.median(
            (1 + curve(table, ARMS["our search, best predicted first"], seed)[-1]) * table.best_s
            for seed in range(SEEDS)
        )
        slower[cell.name] = {name: table.cost_s[g] / chosen_s for name, g in BASELINES.items() if g in table.cost_s}
    names = [name for name in BASELINES if all(name in found for found in slower.values())]
    lines = ["| builder | mean over cells | worst cell | |", "|---|---|---|---|"]
    for name in sorted(names, key=lambda n: max(found[n] for found in slower.values())):
        worst = max(slower, key=lambda c: slower[c][name])
        mean = statistics.mean(found[name] for found in slower.values())
        lines.append(f"| {name} | {mean:.2f}x | {slower[worst][name]:.2f}x | {worst} |")
    least = min(min(found.values()) for found in slower.values())
    return "\n".join(
        [*lines, "", f"The best builder of a cell over the found plan, least over {len(slower)} cells: {least:.3f}x."]
    )


def _reached(curves: list[list[float]], share: float) -> str:
    """Return the median number of trials until the regret is at most that, or how many seeds got there at all."""
    first = [next((k + 1 for k, regret in enumerate(c) if regret <= share), None) for c in curves]
    known = [k for k in first if k is not None]
    return f"{statistics.median(known):g}" if len(known) == len(first) else f"{len(known)} of {len(first)} seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--budget", type=float, default=1.1)
    parser.add_argument("--arms", default="", help="Parts of arms' names, divided by commas; all arms if empty.")
    parser.add_argument("--json", type=Path, required=True, help="JSON-lines file, one line a search; appended to")
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in [name for name in ARMS if not any(part in name for part in given.arms.split(","))]:
        del ARMS[name]
    dataset = load(given.dataset)
    found = tables(dataset, given.budget)
    lines = Lines(given.json, KEY)
    rows = [row for table in found for row in judge(table, given.budget, lines)]
    show(f"{text_of(found, rows)}\n{fixed(dataset, given.budget)}\n", given.md)


if __name__ == "__main__":
    main()
