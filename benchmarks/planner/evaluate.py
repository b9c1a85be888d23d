"""How well plans are ranked and times are predicted from few runs, on a data set of `pliant collect --export`.

``python benchmarks/planner/evaluate.py DATASET --json out.json --md out.md``

Per cell (a model on a network) and number of runs to learn from, over ten random choices of these runs, on all others:
pair accuracy (pairs closer than twice their noise are left out), Kendall's tau, the median and the 90th percentile of
the relative error, and the regret of the best of the first 1, 5 and 10 predicted. A plan counts once, and cells count
alike; intervals are of a bootstrap over cells and choices. No choice of settings was made on these data.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from rankers import Ranker
from scipy.stats import kendalltau

from pliant.planner import Trial
from pliant.planner.dataset import Dataset, load
from pliant.planner.predictor import Predictor
from pliant.simulator import Physics
from pliant.spec.files import write_atomically

NUMBERS = (0, 10, 25, 50, 100)
SEEDS = 10
METRICS = ("pair", "tau", "error", "p90", "regret@1", "regret@5", "regret@10")


def arms(physics: Physics, train: list[Trial], test: list[Trial], seed: int) -> dict[str, np.ndarray]:
    """Return arm -> predicted logarithm of times of the test runs (of rankers: scores)."""
    genes, plans = [t.genes for t in test], [t.genes.plan() for t in test]
    given = physics.counts(plans, physics.coefficients) @ physics.coefficients
    found = {"simulator as given": np.log(given)}
    if not train:
        return found
    learned = Predictor(physics, seed)
    learned.fit(train)
    simulated = physics.counts(plans, learned.coefficients) @ learned.coefficients
    found["calibrated"] = np.log(np.maximum(simulated, 1e-9))
    found["calibrated and residual"] = learned.predict(genes)[0]
    features = Predictor(physics, seed)
    known, log_s = features.features([t.genes for t in train]), np.log([t.step_s for t in train])
    for name, hidden in (("AutoSync's linear ranker", 0), ("AutoSync's RankNet", 32)):
        ranker = Ranker(hidden, seed)
        ranker.fit(known, log_s)
        found[name] = ranker.predict(features.features(genes))
    return found


def judged(predicted: np.ndarray, test: list[Trial], *, absolute: bool) -> dict[str, float]:
    times = np.array([t.step_s for t in test])
    noise = np.array([t.noise_s for t in test])
    i, j = np.triu_indices(len(test), 1)
    clear = np.abs(times[i] - times[j]) > 2 * (noise[i] + noise[j])
    right = np.sign(predicted[i] - predicted[j]) == np.sign(times[i] - times[j])
    order = np.argsort(predicted)
    found = {"pair": float(right[clear].mean()), "tau": float(kendalltau(predicted, times)[0])}
    for k in (1, 5, 10):
        found[f"regret@{k}"] = float(times[order[:k]].min() / times.min() - 1)
    if absolute:
        errors = np.abs(np.exp(predicted) / times - 1)
        found |= {"error": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9))}
    return found


def evaluate(dataset: Dataset) -> list[dict]:
    rows = []
    runs = dataset.columns("runs")
    for model_id, topo_id in sorted(set(zip(runs["model_id"].tolist(), runs["topo_id"].tolist(), strict=True))):
        sound = [t for t in dataset.trials(model_id, topo_id) if t.status == "ok"]
        trials = list({t.genes: t for t in reversed(sound)}.values())  # of a plan that was run again, the first run
        physics = Physics(dataset.models[model_id].workload, dataset.topologies[topo_id].topology)
        for number in (n for n in NUMBERS if len(trials) - n >= 20):
            for seed in range(SEEDS if number else 1):
                order = np.random.default_rng(seed).permutation(len(trials))
                train, test = ([trials[k] for k in part] for part in (order[:number], order[number:]))
                for arm, predicted in arms(physics, train, test, seed).items():
                    absolute = not arm.startswith("AutoSync")
                    found = judged(predicted, test, absolute=absolute)
                    rows.append({"cell": f"{model_id} {topo_id}", "arm": arm, "runs": number, "seed": seed, **found})
        print(f"{model_id} {topo_id}: {len(trials)} runs", flush=True)
    return rows


def table(rows: list[dict]) -> str:
    lines = [f"| arm | runs | {' | '.join(METRICS)} |", f"|{'---|' * (2 + len(METRICS))}"]
    for number in sorted({r["runs"] for r in rows}):
        for arm in dict.fromkeys(r["arm"] for r in rows if r["runs"] == number):
            mine = [r for r in rows if r["arm"] == arm and r["runs"] == number]
            cells = [_interval([r for r in mine if metric in r], metric) for metric in METRICS]
            lines.append(f"| {arm} | {number} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _interval(rows: list[dict], metric: str) -> str:
    if not rows:
        return ""
    by_cell = [[r[metric] for r in rows if r["cell"] == cell] for cell in {r["cell"] for r in rows}]
    rng = np.random.default_rng(0)
    means = [
        np.mean([rng.choice(by_cell[c]) for c in rng.integers(0, len(by_cell), len(by_cell))]) for _ in range(1000)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{statistics.mean(statistics.mean(c) for c in by_cell):.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    rows = evaluate(load(given.dataset))
    text = table(rows)
    print(text)
    if given.json is not None:
        write_atomically(given.json, json.dumps(rows) + "\n")
    if given.md is not None:
        write_atomically(given.md, text)


if __name__ == "__main__":
    main()
