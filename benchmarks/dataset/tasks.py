"""Three fixed tasks on the measured rows, baselines, and their scores. Needs NumPy alone: no torch, and no Pliant.

``python benchmarks/dataset/tasks.py [--md FILE]``

A task holds out clusters, models, or both (`HELD_OUT`), and asks for the order and the times of all plans in the cells
that are held out. A cell is a model with an optimizer on a cluster. Baselines learn from all other measured rows that
share nothing of what is held out: `mean`, the mean time of a plan's family over that of its cell; `simulator`, which
learns nothing; `residual`, a ridge regression of the logarithm of measured over simulated time. Rows that computed and
rows that slept are scored apart, and learned from apart.
"""

import argparse
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1]))

from dataset.schema import FOLDER, KINDS, Row, read

HELD_OUT = {
    "measured-slept": (("4x1-100mbit-5ms-slow0.5", "2x2-1gbit-5ms", "4x1-1gbit-0us"), ("bert", "lstm")),
    "measured-computed": (
        ("4x1-uneven-pairs", "2x2-500mbit-slow", "8x1-150mbit-1ms", "2x3-200mbit-1ms"),
        ("gpt", "wide", "lstm"),
    ),
}
"""Kind of rows -> clusters by name, and families of models."""
TASKS = ("cluster", "model", "both")
METRICS = ("pair", "tau", "regret@1", "regret@5", "error", "p90")
LEAST_PLANS = 8
"""A cell with fewer plans that came to their end is not scored."""
ALIKE = 0.02
"""Times that are closer than this share are in no order."""
RIDGE = 1.0
Floats = NDArray[np.float64]
Baseline = Callable[[Sequence[Row], Sequence[Row]], Floats]


def measured_rows(kind: str, folder: Path = FOLDER) -> list[Row]:
    """Return the rows of a kind that came to their end and can be simulated, each plan of a cell once.

    Of a plan that was run again the median counts. Rows have the names of cluster and model beside their keys.
    """
    families = {row["plan"]: row["family"] for row in read("plans", folder)}
    models = {row["model"]: row for row in read("models", folder)}
    clusters = {row["cluster"]: row for row in read("clusters", folder)}
    place = next(name for name, known in KINDS.items() if known == kind)
    runs = [row for row in read(place, folder) if row["status"] == "ok" and row["simulated_s"]]
    same: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in runs:
        same[(row["cluster"], row["model"], row["optimizer"], row["plan"])].append(row)
    return [
        {
            **rows[0],
            "step_s": statistics.median(row["step_s"] for row in rows),
            "family": families[rows[0]["plan"]],
            "model_family": models[rows[0]["model"]]["family"],
            "num_bytes": models[rows[0]["model"]]["num_bytes"],
            "num_ranks": clusters[rows[0]["cluster"]]["num_ranks"],
            "cluster_name": rows[0]["cluster"].rpartition("-")[0],
        }
        for rows in same.values()
    ]


def split(rows: Sequence[Row], task: str) -> tuple[list[Row], list[Row]]:
    """Return what may be learned from, and what is held out; of `both` neither cluster nor model is shared.

    Raises:
        ValueError: There is no such task.

    """
    if task not in TASKS:
        raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}.")
    train: list[Row] = []
    test: list[Row] = []
    for row in rows:
        clusters, models = HELD_OUT[row["kind"]]
        far, new = row["cluster_name"] in clusters, row["model_family"] in models
        held = {"cluster": far, "model": new, "both": far and new}[task]
        shares = {"cluster": False, "model": False, "both": far != new}[task]
        (test if held else train).append(row) if held or not shares else None
    return train, test


def cells(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each cell that has enough of them."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[(row["cluster"], row["model"], row["optimizer"])].append(row)
    return [each for each in found.values() if len(each) >= LEAST_PLANS]


def mean(train: Sequence[Row], test: Sequence[Row]) -> Floats:
    """Return the mean logarithm of a family's time, each over its cell's mean, plus that of simulated time in the cell.

    A family that was never seen counts as the mean of all.
    """
    of: dict[str, list[float]] = defaultdict(list)
    for cell in cells(train):
        middle = statistics.fmean(math.log(row["step_s"]) for row in cell)
        for row in cell:
            of[row["family"]].append(math.log(row["step_s"]) - middle)
    level: dict[tuple[str, ...], float] = {}
    for cell in cells(test):
        here = (cell[0]["cluster"], cell[0]["model"], cell[0]["optimizer"])
        level[here] = statistics.fmean(math.log(row["simulated_s"]) for row in cell)
    return np.array(
        [
            level[(row["cluster"], row["model"], row["optimizer"])] + statistics.fmean(of.get(row["family"]) or [0.0])
            for row in test
        ]
    )


def simulator(train: Sequence[Row], test: Sequence[Row]) -> Floats:
    """Return the logarithm of simulated times."""
    del train
    return np.log([row["simulated_s"] for row in test])


def residual(train: Sequence[Row], test: Sequence[Row]) -> Floats:
    """Return that of simulated times with a learned correction: ridge regression on standardized features."""
    known = sorted({row["family"] for row in train})
    x, y = _features(train, known), np.array([math.log(row["step_s"] / row["simulated_s"]) for row in train])
    centre, spread = x.mean(0), np.maximum(x.std(0), 1e-9)
    z = (x - centre) / spread
    weights = np.linalg.solve(z.T @ z + RIDGE * np.eye(z.shape[1]), z.T @ (y - y.mean()))
    new = np.clip((_features(test, known) - centre) / spread, z.min(0), z.max(0))  # it does not extrapolate
    return simulator(train, test) + y.mean() + new @ weights


def _features(rows: Sequence[Row], families: Sequence[str]) -> Floats:
    own = [
        [
            math.log(row["simulated_s"]),
            *row["simulated_parts"],
            math.log(row["num_bytes"]),
            math.log(row["num_ranks"]),
            math.log(row["period"] or 1),
            float(row["optimizer"] == "SGD"),
            *(float(row["family"] == family) for family in families),
        ]
        for row in rows
    ]
    return np.array(own)


BASELINES: dict[str, Baseline] = {"mean": mean, "simulator": simulator, "residual": residual}


def scores(log_s: Floats, cell: Sequence[Row]) -> dict[str, float]:
    """Return what predictions are worth in a cell.

    Args:
        log_s: Logarithm of predicted step times in s, (num,).
        cell: The rows, (num,).

    Returns:
        `pair`: share of pairs in order, without those that are alike. `tau`: Kendall's tau-b. `regret@k`: by how much
        the best of the first k predicted is slower than the best of all. `error` and `p90`: median and 90 % quantile of
        the relative error of times.

    """
    times = np.array([row["step_s"] for row in cell])
    i, j = np.triu_indices(len(times), 1)
    apart = np.abs(np.log(times[i] / times[j])) > ALIKE
    said, was = np.sign(log_s[i] - log_s[j]), np.sign(times[i] - times[j])
    ties = math.sqrt(float(said @ said) * float(was @ was)) or 1.0
    order = np.argsort(log_s, kind="stable")
    errors = np.abs(np.exp(log_s) / times - 1)
    return {
        "pair": float((said == was)[apart].mean()) if apart.any() else 1.0,
        "tau": float(said @ was) / ties,
        **{f"regret@{k}": float(times[order[:k]].min() / times.min() - 1) for k in (1, 5)},
        "error": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }


def results(folder: Path = FOLDER) -> list[Row]:
    """Return the scores of each kind of rows, task and baseline: means over cells; a kind without rows has none."""
    found: list[Row] = []
    for kind, task in itertools.product(HELD_OUT, TASKS):
        train, test = split(measured_rows(kind, folder), task)
        held = cells(test)
        test = [row for cell in held for row in cell]
        if not held or not cells(train):
            continue
        ends = np.cumsum([len(cell) for cell in held])[:-1]
        for name, predict in BASELINES.items():
            each = [scores(s, cell) for s, cell in zip(np.split(predict(train, test), ends), held, strict=True)]
            figures = {metric: statistics.fmean(one[metric] for one in each) for metric in METRICS}
            about = {"kind": kind, "task": task, "cells": len(held), "train": len(train), "test": len(test)}
            found.append({**about, "baseline": name, **figures})
    return found


def table(found: Sequence[Row]) -> str:
    """Return the results as Markdown."""
    columns = ("kind", "task", "cells", "train", "test", "baseline")
    lines = [f"| {' | '.join((*columns, *METRICS))} |", f"|{'---|' * (len(columns) + len(METRICS))}"]
    for row in found:
        figures = [f"{row[m]:.3f}" if m in ("pair", "tau") else f"{row[m]:.1%}" for m in METRICS]
        lines.append(f"| {' | '.join((*(str(row[name]) for name in columns), *figures))} |")
    return "\n".join(lines) + "\n"


def figures_of(text: str) -> list[list[float]]:
    """Return the scores in a page's tables, a list for each row of `table`, so that two can be compared."""
    found: list[list[float]] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("| ").split("|")]
        if parts[0] in HELD_OUT and len(parts) == 6 + len(METRICS):
            found.append([float(p.rstrip("%")) / (100 if p.endswith("%") else 1) for p in parts[-len(METRICS) :]])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--md", type=Path, help="write the table there")
    given = parser.parse_args()
    text = table(results())
    print(text)
    if given.md is not None:
        given.md.write_text(text)


if __name__ == "__main__":
    main()
