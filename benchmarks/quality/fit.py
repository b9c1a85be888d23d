"""The planner's table of steps ratios, and how well ratios of one task are predicted from the others. No torch.

``python benchmarks/quality/fit.py benchmarks/results/steps_ratio_2core_2026-11-25.jsonl``
``python benchmarks/quality/fit.py FILE... --write``    writes src/pliant/planner/steps_ratios.json as well

A row needs three tasks with three seeds each (`--tasks`, `--seeds`). The ratio of a task is the geometric mean over its
seeds, in which a training that did not reach the target counts as the most that could have been seen, and that of a
setting and an optimizer is the median over tasks. The held-out check predicts each task's ratio by the median over the
other tasks and prints the share of pairs (task, setting) within 10 %, with each optimizer and of all.

A task with an optimizer counts if it can tell ratios at all: unbiased codes of 8 bits hardly change a gradient, so what
their seeds differ by is noise. Where the largest of them is more than 1.5 times the least, nothing of it counts.

Lines that name the size of the model, such as those of `benchmarks/local_steps/ratios.py`, make a row for each size,
number of ranks and length. It needs one task with three seeds, and one seed that did not reach the target has no ratio.
"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pliant.planner.steps_ratios import STEPS_RATIOS_PATH

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import read_records

MOST_RATIO = 2.0
"""Ratio that a training which has not reached its target counts as: it would be at least this."""
NEAR = 0.10
TASKS, SEEDS = 3, 3
CONTROL, MOST_NOISE = ("quantized", {"bits": 8}), 1.5
"""Setting whose seeds show what a ratio's noise is, and the most that they may differ by."""
Record = dict[str, Any]


class Cell(NamedTuple):
    """A setting with an optimizer on so many ranks, for one model and length if lines name them."""

    setting: str
    optimizer: str
    ranks: int
    parameters: int = 0
    steps: int = 0
    limit: float = MOST_RATIO
    """Ratio at which a training ended."""


def noise_of(lines: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Return task and optimizer -> the largest ratio of the control's seeds over the least."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "curve" and (line.get("family"), line.get("settings")) == CONTROL and line["ratio"]:
            found[line["task"], line["optimizer"]].append(line["ratio"])
    return {pair: max(ratios) / min(ratios) for pair, ratios in found.items()}


def telling(lines: Sequence[Record]) -> list[Record]:
    """Return the lines of tasks whose ratios are more than noise."""
    noise = noise_of(lines)
    return [line for line in lines if noise.get((line["task"], line["optimizer"]), 1.0) <= MOST_NOISE]


def logs_of(lines: Sequence[Record]) -> dict[Cell, dict[str, list[float]]]:
    """Return the logarithms of each cell's ratios by task, one a seed; those refused do not count."""
    logs: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["kind"] != "curve" or line["why"].startswith("refused"):
            continue
        size = (line["parameters"], line["steps"], line["limit"]) if "parameters" in line else ()
        most = math.inf if size else MOST_RATIO
        ratio = most if line["ratio"] is None else min(line["ratio"], most)
        cell = Cell(line["setting"], line["optimizer"], line["ranks"], *size)
        logs[cell][line["task"]].append(math.log(ratio))
    return logs


def by_task(lines: Sequence[Record], seeds: int) -> dict[Cell, dict[str, float]]:
    """Return each cell's ratio by task, of tasks on which so many seeds have run."""
    return {
        cell: {task: math.exp(statistics.mean(found)) for task, found in tasks.items() if len(found) >= seeds}
        for cell, tasks in logs_of(lines).items()
    }


def held_out(ratios: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return task -> the ratio that the other tasks predict, and its own.

    >>> held_out({"a": 1.0, "b": 1.2, "c": 1.4})["c"]
    (1.1, 1.4)
    """
    return {
        task: (statistics.median(other for name, other in ratios.items() if name != task), own)
        for task, own in ratios.items()
        if len(ratios) > 1
    }


def of_sizes(cells: Mapping[Cell, Mapping[str, float]]) -> list[tuple[float, float]]:
    """Return the medians of a setting on a model and on the next larger one, with as many ranks and steps.

    The planner takes the second to be no higher, as it judges a model by the nearest smaller one.
    """
    medians = {cell: statistics.median(ratios.values()) for cell, ratios in cells.items() if ratios and cell.parameters}
    alike: dict[Cell, list[Cell]] = defaultdict(list)
    for cell in sorted(medians, key=lambda cell: cell.parameters):
        alike[cell._replace(parameters=0)].append(cell)
    return [(medians[one], medians[other]) for these in alike.values() for one, other in pairwise(these)]


def rows(lines: Sequence[Record], tasks: int, seeds: int) -> list[Record]:
    """Return the rows of the table, of cells that were measured on enough tasks."""
    of = {line["setting"]: line for line in lines}

    def seen(ratio: float) -> float | None:
        return None if ratio >= MOST_RATIO else round(ratio, 3)

    return [
        {
            "family": of[cell.setting]["family"],
            "settings": of[cell.setting]["settings"],
            "optimizer": cell.optimizer,
            "ranks": cell.ranks,
            "ratio": seen(max(statistics.median(ratios.values()), 1.0)),
            "highest": seen(max(*ratios.values(), 1.0)),
            "tasks": len(ratios),
            **({name: getattr(cell, name) for name in ("parameters", "steps", "limit")} if cell.parameters else {}),
        }
        for cell, ratios in sorted(by_task(lines, seeds).items())
        if len(ratios) >= (1 if cell.parameters else tasks)
    ]


def report(lines: Sequence[Record], tasks: int, seeds: int) -> str:
    """Return a table of all cells, and the share of held-out pairs that were predicted within 10 %."""
    cells = by_task(lines, seeds)
    told = ["| setting | optimizer | ranks | M parameters | steps | median | by task |", "|---" * 7 + "|"]
    errors: dict[str, list[float]] = defaultdict(list)
    for cell, ratios in sorted(cells.items()):
        if not ratios:
            continue
        each = ", ".join(f"{task} {ratio:.2f}" for task, ratio in sorted(ratios.items()))
        size = f"{cell.parameters / 1e6:.3g} | {cell.steps}" if cell.parameters else " | "
        median = f"{statistics.median(ratios.values()):.2f}"
        told.append(f"| {cell.setting} | {cell.optimizer} | {cell.ranks} | {size} | {median} | {each} |")
        if len(ratios) >= tasks:
            pairs = held_out(ratios).values()
            errors[cell.optimizer] += [0.0 if guess == own else abs(guess / own - 1) for guess, own in pairs]
    told.append("")
    for name, found in [*errors.items(), ("all", [error for these in errors.values() for error in these])]:
        share = sum(error <= NEAR for error in found) / max(len(found), 1)
        told.append(f"{name}: {share:.0%} of {len(found)} held-out pairs (task, setting) within {NEAR:.0%}.")
    if sizes := of_sizes(cells):
        held = sum(larger <= smaller for smaller, larger in sizes)
        told.append(f"{held} of {len(sizes)} ratios are no higher than on the next smaller model.")
    return "\n".join(told)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, nargs="+", help="files that steps_ratio.py, or ratios.py, has written")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks that a row needs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds that a task needs")
    parser.add_argument("--write", action="store_true", help="write the planner's table")
    given = parser.parse_args(argv)
    every = [line for path in given.lines for line in read_records(path)]
    lines = telling(every)
    print(report(lines, given.tasks, given.seeds))
    for (task, optimizer), noise in sorted(noise_of(every).items()):
        if noise > MOST_NOISE:
            print(f"{task} with {optimizer} does not count: seeds of 8 bits differ by {noise:.2f} times.")
    if given.write:
        made = rows(lines, given.tasks, given.seeds)
        names = ", ".join(path.name for path in given.lines)
        about = {"lines": names, "tasks": given.tasks, "seeds": given.seeds}
        body = ",\n".join("    " + json.dumps(row) for row in made)
        STEPS_RATIOS_PATH.write_text(f'{{\n  "about": {json.dumps(about)},\n  "rows": [\n{body}\n  ]\n}}\n')
        print(f"{STEPS_RATIOS_PATH} is written, with {len(made)} rows.")


if __name__ == "__main__":
    main()
