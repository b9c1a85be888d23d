"""How well plans are ranked and times are predicted on cells of a data set of `pliant collect --export`.

``python benchmarks/planner/evaluate.py DATASET --json LINES --md out.md``    resumes from LINES, one line a cell

Two tables. The first learns from some runs of a cell (a model on a network) and predicts its others. The second learns
from other cells, of other models (`model`), other networks (`topology`) or neither the same model nor the same network
(`both`), and from k runs of the cell itself. Arms: `pliant.planner.predictor` with and without its residual, and
AutoSync's learners on the same features. A plan counts once; cells count alike; intervals are of a bootstrap over cells
and choices of runs. No choice of settings was made on these data.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from rankers import Ranker

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, show

from pliant.planner import Trial
from pliant.planner.predictor import Predictor, TransferPrior
from pliant_bench.dataset import load
from pliant_bench.dataset.judge import judged
from pliant_bench.dataset.measured import MeasuredCell, measured_cells

KEY = ("number", "model", "network")
NUMBERS = (0, 10, 25, 50, 80)
SHOTS = (0, 5, 10, 20)
SEEDS = 10
LEARNED_SHOTS, LEARNED_SEEDS = (0, 20), 2
"""What is learned over all cells takes seconds to fit: fewer choices, and `both` alone."""
LEAST_TEST = 12
METRICS = ("pair", "tau", "error", "p90", "regret@1", "regret@5", "regret@10")
RANKERS = (("AutoSync's linear ranker", 0), ("AutoSync's RankNet", 32))


def split(cell: MeasuredCell, number: int, seed: int) -> tuple[list[Trial], list[Trial]]:
    order = np.random.default_rng(seed).permutation(len(cell.trials))
    train, test = ([cell.trials[k] for k in part] for part in (order[:number], order[number:]))
    return train, test


def within(cell: MeasuredCell) -> Iterator[dict]:
    """Learn from some runs of a cell, and predict its others."""
    for number in (n for n in NUMBERS if len(cell.trials) - n >= LEAST_TEST):
        for seed in range(SEEDS if number else 1):
            train, test = split(cell, number, seed)
            genes = [t.genes for t in test]
            learned = Predictor(cell.physics, seed)
            learned.fit(train)
            scores = {"simulator as given" if not number else "coefficients fitted": learned.simulate(genes)}
            if number:
                scores["and the residual"] = learned.predict(genes)[0]
                features = Predictor(cell.physics, seed)
                known, log_s = features.features([t.genes for t in train]), np.log([t.step_s for t in train])
                for name, hidden in RANKERS:
                    ranker = Ranker(hidden, seed)
                    ranker.fit(known, log_s, np.zeros(len(train), dtype=int))
                    scores[name] = ranker.predict(features.features(genes))
            yield from rows(cell, "within", number, seed, scores, test)


def across(cell: MeasuredCell, cells: list[MeasuredCell]) -> Iterator[dict]:
    """Learn from other cells, and from k runs of the cell itself."""
    for held_out in ("model", "topology", "both"):
        others = [other for other in cells if apart(cell, other, held_out)]
        if not others:
            continue
        experience = TransferPrior.of([(other.physics, other.trials) for other in others])
        pooled = pooled_features(others)
        for shots in (k for k in SHOTS if len(cell.trials) - k >= LEAST_TEST):
            for seed in range(SEEDS if shots else 1):
                train, test = split(cell, shots, seed)
                learns = held_out == "both" and shots in LEARNED_SHOTS and seed < LEARNED_SEEDS
                scores = transferred(cell, experience, pooled, train, test, seed, learns=learns)
                yield from rows(cell, held_out, shots, seed, scores, test)


def judge(k: int, folder: Path) -> list[dict]:
    """Judge one cell of a data set, in a process of its own."""
    cells = measured_cells(load(folder))
    found = [*within(cells[k]), *across(cells[k], cells)]
    print(f"{cells[k].name}: {len(cells[k].trials)} runs", flush=True)
    return found


def transferred(
    cell: MeasuredCell,
    experience: TransferPrior,
    pooled: tuple[np.ndarray, np.ndarray, np.ndarray],
    train: list[Trial],
    test: list[Trial],
    seed: int,
    *,
    learns: bool,
) -> dict[str, np.ndarray]:
    genes = [t.genes for t in test]
    learned = Predictor(cell.physics, seed, experience)
    learned.fit(train)
    scores = {"coefficients from elsewhere": learned.simulate(genes)}
    if train:
        alone = Predictor(cell.physics, seed)
        alone.fit(train)
        scores["coefficients from its own runs"] = alone.simulate(genes)
    if not learns:
        return scores
    scores["and the residual"] = learned.predict(genes)[0]
    features = Predictor(cell.physics, seed)
    x, y, groups = pooled
    if train:
        own = features.features([t.genes for t in train])
        x, y = np.concatenate([x, own]), np.concatenate([y, np.log([t.step_s for t in train])])
        groups = np.concatenate([groups, np.full(len(train), groups.max() + 1)])
    for name, hidden in RANKERS:
        ranker = Ranker(hidden, seed)
        ranker.fit(x, y, groups)
        scores[name] = ranker.predict(features.features(genes))
    return scores


def pooled_features(cells: list[MeasuredCell]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = [Predictor(cell.physics).features([t.genes for t in cell.trials]) for cell in cells]
    y = [np.log([t.step_s for t in cell.trials]) for cell in cells]
    groups = [np.full(len(cell.trials), k) for k, cell in enumerate(cells)]
    return np.concatenate(x), np.concatenate(y), np.concatenate(groups)


def apart(cell: MeasuredCell, other: MeasuredCell, held_out: str) -> bool:
    same_model, same_network = cell.model_id == other.model_id, cell.topo_id == other.topo_id
    return not {"model": same_model, "topology": same_network, "both": same_model or same_network}[held_out]


def rows(
    cell: MeasuredCell, held_out: str, runs: int, seed: int, scores: dict[str, np.ndarray], test: list[Trial]
) -> Iterator[dict]:
    for arm, predicted in scores.items():
        found = judged(predicted, test, absolute=not arm.startswith("AutoSync"))
        yield {"cell": cell.name, "held_out": held_out, "arm": arm, "runs": runs, "seed": seed, **found}


def table(rows: list[dict]) -> str:
    lines = [f"| held out | runs of its own | arm | {' | '.join(METRICS)} |", f"|{'---|' * (3 + len(METRICS))}"]
    for held_out in dict.fromkeys(r["held_out"] for r in rows):
        for number in sorted({r["runs"] for r in rows if r["held_out"] == held_out}):
            here = [r for r in rows if r["held_out"] == held_out and r["runs"] == number]
            for arm in dict.fromkeys(r["arm"] for r in here):
                mine = [r for r in here if r["arm"] == arm]
                cells = [_interval([r for r in mine if metric in r], metric) for metric in METRICS]
                lines.append(f"| {held_out} | {number} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _interval(rows: list[dict], metric: str) -> str:
    if not rows:
        return ""
    by_cell = [[r[metric] for r in rows if r["cell"] == cell] for cell in sorted({r["cell"] for r in rows})]
    rng = np.random.default_rng(0)
    means = [
        np.mean([rng.choice(by_cell[c]) for c in rng.integers(0, len(by_cell), len(by_cell))]) for _ in range(1000)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{statistics.mean(statistics.mean(c) for c in by_cell):.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--json", type=Path, required=True, help="JSON-lines file, one line a cell; appended to")
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    lines = Lines(given.json, KEY)
    keys = [(k, cell.model_id, cell.topo_id) for k, cell in enumerate(measured_cells(load(given.dataset)))]
    left = [key for key in keys if not lines.has(*key)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows_of = pool.map(partial(judge, folder=given.dataset), [number for number, *_ in left])
        for key, found in zip(left, rows_of, strict=True):
            lines.add({**dict(zip(KEY, key, strict=True)), "rows": found})
    show(table([row for key in keys for row in lines.records[key]["rows"]]), given.md)


if __name__ == "__main__":
    main()
