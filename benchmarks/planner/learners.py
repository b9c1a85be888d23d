"""AutoSync's learners beside Pliant's, on the same splits of a data set: who orders plans best from so many runs.

``python benchmarks/planner/learners.py DATASET --results FILE.jsonl [--md FILE.md]``

Splits are those of `evaluate.py` with one seed: learned from some runs of a cell (`within`), or from cells of other
models and other networks and from k runs of the cell itself (`both`). Arms: the simulator as given, with its
coefficients fitted, with the residual learned, and AutoSync's linear ranker, RankNet and bi-LSTM (`rank_rnn.py`). One
line a cell and split; what has a line is not run again. No setting was chosen on these data.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from evaluate import RANKERS, apart, pooled_features, rows, split, table
from rank_rnn import RankRnn, variables_of
from rankers import Ranker

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, place, show

from pliant.planner import Trial
from pliant.planner.predictor import Predictor, TransferPrior
from pliant_bench.dataset import Dataset, load
from pliant_bench.dataset.measured import MeasuredCell, measured_cells

NUMBERS = {"both": (0, 20), "within": (25,)}
SEEDS = 1
LEAST_TEST = 12
KEY = ("cell", "held_out", "runs", "seed")

Job = tuple[str, str, int, int]
"""Values of `KEY`."""
Known = tuple[np.ndarray, np.ndarray]
"""Variables of plans, (num, num_variables, num_features), and the logarithm of their times, (num,)."""


class Splits:
    """Cells of a data set, with the variables of their plans, each made once."""

    def __init__(self, dataset: Dataset) -> None:
        self.cells = measured_cells(dataset)
        self._dataset = dataset
        self._variables: dict[str, Known] = {}

    def known(self, cell: MeasuredCell) -> Known:
        """Return what is known of all trials of a cell, in their order."""
        if cell.name not in self._variables:
            workload = self._dataset.models[cell.model_id].workload
            topology = self._dataset.topologies[cell.topo_id].topology
            rows = np.stack([variables_of(t.genes, workload, topology) for t in cell.trials])
            self._variables[cell.name] = rows, np.log([t.step_s for t in cell.trials])
        return self._variables[cell.name]

    def part(self, cell: MeasuredCell, trials: list[Trial]) -> Known:
        """Return what is known of some trials of a cell."""
        place_of = {id(trial): k for k, trial in enumerate(cell.trials)}
        x, y = self.known(cell)
        chosen = [place_of[id(trial)] for trial in trials]
        return x[chosen], y[chosen]

    def scores(self, cell: MeasuredCell, held_out: str, number: int, seed: int) -> tuple[dict[str, np.ndarray], list]:
        """Return every arm's scores of the trials that it has not seen, and those trials."""
        train, test = split(cell, number, seed)
        others = [other for other in self.cells if apart(cell, other, "both")] if held_out == "both" else []
        experience = TransferPrior.of([(other.physics, other.trials) for other in others]) if others else None
        predictor = Predictor(cell.physics, seed, experience)
        genes = [trial.genes for trial in test]
        scores = {"simulator as given": predictor.simulate(genes)} if not others else {}
        predictor.fit(train)
        scores["coefficients fitted"] = predictor.simulate(genes)
        scores["and the residual"] = predictor.predict(genes)[0]
        plain = Predictor(cell.physics, seed)
        x, y, groups = pooled_features(others) if others else (np.zeros((0, 0)), np.zeros(0), np.zeros(0, dtype=int))
        if train:
            own, own_s = plain.features([t.genes for t in train]), np.log([t.step_s for t in train])
            x, y = (np.concatenate([x, own]), np.concatenate([y, own_s])) if others else (own, own_s)
            groups = np.concatenate([groups, np.full(len(train), len(others))])
        for name, hidden in RANKERS:
            ranker = Ranker(hidden, seed)
            ranker.fit(x, y, groups)
            scores[name] = ranker.predict(plain.features(genes))
        rnn = RankRnn(seed)
        rnn.fit([*map(self.known, others), *([self.part(cell, train)] if train else [])])
        scores["AutoSync's bi-LSTM"] = rnn.predict(self.part(cell, test)[0])
        return scores, test


def judge(job: Job, folder: Path) -> dict:
    """Return the line of a job, in a process of its own."""
    splits = _splits(folder)
    (cell,) = (cell for cell in splits.cells if cell.name == job[0])
    scores, test = splits.scores(cell, *job[1:])
    return {**dict(zip(KEY, job, strict=True)), "arms": list(rows(cell, *job[1:], scores, test)), **place()}


@cache
def _splits(folder: Path) -> Splits:
    return Splits(load(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    lines, cells = Lines(given.results, KEY), _splits(given.dataset).cells
    jobs = [
        (cell.name, held_out, number, seed)
        for held_out, numbers in NUMBERS.items()
        for number in numbers
        for cell in cells
        if len(cell.trials) - number >= LEAST_TEST
        for seed in range(SEEDS)
    ]
    left = [job for job in jobs if not lines.has(*job)]
    with ProcessPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for line in pool.map(partial(judge, folder=given.dataset), left):
            lines.add(line)
            print(json.dumps([line[key] for key in KEY]), flush=True)
    show(table([row for record in lines.records.values() for row in record["arms"]]), given.md)


if __name__ == "__main__":
    main()
