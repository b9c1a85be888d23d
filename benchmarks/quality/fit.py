"""The planner's table of steps ratios, and how well ratios of one task are predicted from the others. No torch.

``python benchmarks/quality/fit.py benchmarks/results/steps_ratio_2core_2026-11-25.jsonl``
``python benchmarks/quality/fit.py FILE --write``    writes src/pliant/planner/steps_ratios.json as well

A row needs three tasks with three seeds each (`--tasks`, `--seeds`). The ratio of a task is the geometric mean over its
seeds, in which a training that did not reach the target counts as the most that could have been seen, and that of a
setting and an optimizer is the median over tasks. The held-out check predicts each task's ratio by the median over the
other tasks and prints the share of pairs (task, setting) within 10 %, with each optimizer and of both.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pliant.planner.steps_ratios import STEPS_RATIOS_PATH

MOST_RATIO = 2.0
"""Ratio that a training which has not reached its target counts as: it would be at least this."""
NEAR = 0.10
TASKS, SEEDS = 3, 3
Record = dict[str, Any]


class Cell(NamedTuple):
    """A setting with an optimizer on so many ranks."""

    setting: str
    optimizer: str
    ranks: int


def by_task(lines: Sequence[Record], seeds: int) -> dict[Cell, dict[str, float]]:
    """Return each cell's ratio by task, of tasks on which so many seeds have run; those refused do not count."""
    logs: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["kind"] != "curve" or line["why"].startswith("refused"):
            continue
        ratio = MOST_RATIO if line["ratio"] is None else min(line["ratio"], MOST_RATIO)
        cell = Cell(line["setting"], line["optimizer"], line["ranks"])
        logs[cell][line["task"]].append(math.log(ratio))
    return {
        cell: {task: math.exp(statistics.mean(found)) for task, found in tasks.items() if len(found) >= seeds}
        for cell, tasks in logs.items()
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
        }
        for cell, ratios in sorted(by_task(lines, seeds).items())
        if len(ratios) >= tasks
    ]


def report(lines: Sequence[Record], tasks: int, seeds: int) -> str:
    """Return a table of all cells, and the share of held-out pairs that were predicted within 10 %."""
    cells = by_task(lines, seeds)
    told = ["| setting | optimizer | ranks | median | by task |", "|---|---|---|---|---|"]
    errors: dict[str, list[float]] = defaultdict(list)
    for cell, ratios in sorted(cells.items()):
        if not ratios:
            continue
        each = ", ".join(f"{task} {ratio:.2f}" for task, ratio in sorted(ratios.items()))
        told.append(
            f"| {cell.setting} | {cell.optimizer} | {cell.ranks} | {statistics.median(ratios.values()):.2f} | {each} |"
        )
        if len(ratios) >= tasks:
            errors[cell.optimizer] += [abs(guess / own - 1) for guess, own in held_out(ratios).values()]
    told.append("")
    for name, found in [*errors.items(), ("both", [error for these in errors.values() for error in these])]:
        share = sum(error <= NEAR for error in found) / max(len(found), 1)
        told.append(f"{name}: {share:.0%} of {len(found)} held-out pairs (task, setting) within {NEAR:.0%}.")
    return "\n".join(told)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="file that steps_ratio.py has written")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks that a row needs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds that a task needs")
    parser.add_argument("--write", action="store_true", help="write the planner's table")
    given = parser.parse_args(argv)
    lines = [json.loads(line) for line in given.lines.read_text().splitlines()]
    print(report(lines, given.tasks, given.seeds))
    if given.write:
        made = rows(lines, given.tasks, given.seeds)
        about = {"lines": given.lines.name, "tasks": given.tasks, "seeds": given.seeds}
        body = ",\n".join("    " + json.dumps(row) for row in made)
        STEPS_RATIOS_PATH.write_text(f'{{\n  "about": {json.dumps(about)},\n  "rows": [\n{body}\n  ]\n}}\n')
        print(f"{STEPS_RATIOS_PATH} is written, with {len(made)} rows.")


if __name__ == "__main__":
    main()
