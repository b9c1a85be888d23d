"""How well a steps ratio is predicted that was left out: by other tasks, and by the task's other exchanges.

``python benchmarks/quality/pairs.py benchmarks/results/steps_ratio_*2core*.jsonl``

A pair is a task with an optimizer, and a setting. Each is left out in turn, and predicted in four ways:

- `other tasks`: the median over the other tasks with this optimizer, as the planner's table has it.
- `both optimizers`: the median over the other tasks, with any optimizer.
- `alike tasks`: the mean over all tasks and optimizers, weighted by how near their other ratios are to this task's.
- `severity`: the logarithm of the ratio is a severity of the setting times a sensitivity of the task with the
  optimizer, one for codecs and one for weights that differ. Both are fitted to all other pairs by least squares.

The last two need ratios of the task itself. A training that did not come to its target counts as twice the steps, and a
prediction of more is right there. How far seeds differ bounds all of them: the last line predicts a seed by two others.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fit import MOST_RATIO, NEAR, SEEDS, TASKS, Record, by_task, logs_of, read_records, telling
from scipy.optimize import least_squares

Who = tuple[str, str]
"""Task, and optimizer."""
Known = dict[Who, dict[str, float]]
"""Logarithms of ratios by setting."""
Guess = Callable[[Known, Who, str], float]
_MOST = math.log(MOST_RATIO)
_BEYOND = 1.5
"""Logarithm above which a fitted ratio is no worse: far above what could be seen."""
_NOISE, _SPREAD, _USUAL = 0.08, 0.3, -2.3
"""Deviation of a logarithm; of a setting's from the usual severity, in units of a unit of it; and its logarithm."""


def other_tasks(known: Known, who: Who, setting: str) -> float:
    return statistics.median(each[setting] for (task, name), each in known.items() if task != who[0] and name == who[1])


def both_optimizers(known: Known, who: Who, setting: str) -> float:
    return statistics.median(each[setting] for (task, _), each in known.items() if task != who[0])


def alike_tasks(known: Known, who: Who, setting: str) -> float:
    mine, weights, found = known[who], [], []
    for other, each in known.items():
        if other != who and setting in each:
            apart = statistics.mean(abs(mine[s] - each[s]) for s in mine if s != setting and s in each)
            weights.append((apart + 0.02) ** -4)
            found.append(each[setting])
    return float(np.average(found, weights=weights))


def severity(known: Known, who: Who, setting: str) -> float:
    tasks, settings = list(known), sorted({s for each in known.values() for s in each})
    pairs = [
        (i, j)
        for i, w in enumerate(tasks)
        for j, s in enumerate(settings)
        if s in known[w] and (w, s) != (who, setting)
    ]
    of_task, of_setting = (np.array(places) for places in zip(*pairs, strict=True))
    ratios = np.array([known[tasks[i]][settings[j]] for i, j in pairs])
    sides = np.array([_side(s) for s in settings])

    def predicted(z: np.ndarray, task: np.ndarray | int, setting: np.ndarray | int) -> np.ndarray:
        severities, sensitivities, contrasts = np.split(z, [len(settings), len(settings) + len(tasks)])
        return np.exp(severities[setting] + sensitivities[task] + sides[setting] * contrasts[task])

    def errors(z: np.ndarray) -> np.ndarray:
        guess = predicted(z, of_task, of_setting)
        off = np.where(ratios >= _MOST - 1e-6, np.minimum(guess - _MOST, 0), np.minimum(guess, _BEYOND) - ratios)
        severities, others = z[: len(settings)], z[len(settings) :]
        return np.concatenate([off / _NOISE, (severities - _USUAL) * _SPREAD / 2, others])

    start = np.concatenate([np.full(len(settings), _USUAL), np.zeros(2 * len(tasks))])
    fitted = least_squares(errors, start, max_nfev=40).x
    return float(predicted(fitted, tasks.index(who), settings.index(setting)))


def _side(setting: str) -> int:
    """Return 1 for codecs, -1 where weights differ, and 0 for what is only late."""
    family = setting.partition("(")[0]
    return {"late": 0, "local": -1, "gossip": -1, "choco": -1, "diloco": -1}.get(family, 1)


def is_near(guess: float, own: float) -> bool:
    return abs(math.exp(min(guess, _MOST) - own) - 1) <= NEAR


def shares(known: Known, guess: Guess) -> str:
    """Return the share of pairs that are predicted within 10 %, with each optimizer and of all."""
    pairs = [(who, setting) for who, each in known.items() for setting in each]
    near = [is_near(guess(known, who, setting), known[who][setting]) for who, setting in pairs]
    names = sorted({name for _, name in known})
    parts = [statistics.mean(ok for ok, (who, _) in zip(near, pairs, strict=True) if who[1] == name) for name in names]
    return " | ".join(f"{share:.0%}" for share in (*parts, statistics.mean(near)))


def of_seeds(lines: list[Record]) -> float:
    """Return the share of trainings whose ratio is within 10 % of the geometric mean of two other seeds."""
    three = [each for tasks in logs_of(lines).values() for each in tasks.values() if len(each) == SEEDS]
    return statistics.mean(is_near((sum(each) - one) / 2, one) for each in three for one in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, nargs="+", help="files that steps_ratio.py has written")
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    lines = telling([line for path in given.lines for line in read_records(path)])
    known: Known = {}
    for cell, ratios in by_task(lines, SEEDS).items():
        if cell.ranks == given.ranks and len(ratios) >= TASKS:
            for task, ratio in ratios.items():
                known.setdefault((task, cell.optimizer), {})[cell.setting] = math.log(ratio)
    names = sorted({name for _, name in known})
    sys.stdout.write(f"| predicted by | {' | '.join(names)} | all |\n|{'---|' * (len(names) + 2)}\n")
    for guess in (other_tasks, both_optimizers, alike_tasks, severity):
        sys.stdout.write(f"| {guess.__name__.replace('_', ' ')} | {shares(known, guess)} |\n")
    sys.stdout.write(f"\nA seed by two others: {of_seeds(lines):.0%} within {NEAR:.0%}.\n")


if __name__ == "__main__":
    main()
