"""Tables of trainings with local steps: perplexity, its ratio to tuned data parallelism, bytes and exchanges.

``python benchmarks/local_steps/page.py results.jsonl > page.md``

Each arm is at its own best rate, whose neighbours at half and at twice it are worse at the same length. Ratios of
perplexities are of the same seed; an arm with several seeds has their mean, and the lowest and highest beside it. A
trial that lacks a training is left out.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rates import NotTrainedError, Rates, Trainings, from_file, loss_of
from trials import ADAMW_DDP, BASE, EVERY_STEP, LIST, MUON_DDP, Arm, Record, read

_CELL = ("size", "windows", "ranks", "steps", "decay")
_MB = 1e6


class Row(NamedTuple):
    """An arm in a cell, with its trainings by seed."""

    arm: str
    optimizer: str
    algorithm: str
    rate: float
    by_seed: dict[int, Record]

    @property
    def perplexities(self) -> dict[int, float]:
        """Held-out perplexity at the end, by seed; infinite where it diverged."""
        return {s: math.inf if line["diverged"] else math.exp(loss_of(line)) for s, line in self.by_seed.items()}

    def over(self, base: "Row | None") -> list[float]:
        """Return the ratios to a baseline, of seeds that both have."""
        if base is None:
            return []
        own, other = self.perplexities, base.perplexities
        return [own[seed] / other[seed] for seed in own if seed in other]


Cells = dict[tuple[object, ...], list[Row]]


def rows(trials: Sequence[Record], trainings: Trainings) -> Cells:
    """Return the rows of each cell, of trials whose trainings are all there."""
    rates, found = Rates(from_file(trainings)), {}
    for trial in trials:
        if trial["kind"] == "tuned":
            continue
        try:
            rate, line = rates.carry_out(trial)
        except (NotTrainedError, ValueError):
            continue
        arm = trial["arm"] + (f", {trial['times']:g} x DDP's rate" if trial["kind"] == "scaled" else "")
        cell = found.setdefault(tuple(trial[name] for name in _CELL), {})
        row = Row(arm, trial["optimizer"], trial["algorithm"], rate, {})
        cell.setdefault((arm, trial["optimizer"]), row).by_seed[trial["seed"]] = line
    return {cell: list(arms.values()) for cell, arms in found.items()}


def find(cell: Sequence[Row], arm: Arm, optimizer: str = "") -> Row | None:
    """Return the row of an arm, or of the same arm with another optimizer."""
    wanted = (arm.algorithm, optimizer or arm.optimizer)
    return next((row for row in cell if (row.algorithm, row.optimizer) == wanted and "x DDP" not in row.arm), None)


def ratio_text(ratios: Sequence[float]) -> str:
    """Return a mean of ratios, with the lowest and highest if there are several.

    >>> ratio_text([1.0, 1.1]), ratio_text([1.234]), ratio_text([])
    ('1.050 (1.000 .. 1.100)', '1.234', '')
    """
    spread = f" ({min(ratios):.3f} .. {max(ratios):.3f})" if len(ratios) > 1 else ""
    return f"{statistics.fmean(ratios):.3f}{spread}" if ratios else ""


def table(cell: Sequence[Row]) -> str:
    """Return the table of a cell, the lowest perplexity first."""
    adamw, muon = find(cell, ADAMW_DDP), find(cell, MUON_DDP)
    head = "| arm | optimizer | rate | perplexity | over AdamW DDP | over Muon DDP | MB a worker and step | exchanges |"
    lines = [head, "|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in sorted(cell, key=lambda row: statistics.fmean(row.perplexities.values())):
        line = next(iter(row.by_seed.values()))
        sent = line["sent_bytes"] / line["ranks"] / _MB
        figures = [f"{row.rate:.3g}", f"{statistics.fmean(row.perplexities.values()):.3f}"]
        figures += [ratio_text(row.over(adamw)), ratio_text(row.over(muon)), f"{sent:.3g}", f"{line['exchanges']}"]
        lines.append(f"| {row.arm} | {row.optimizer} | {' | '.join(figures)} |")
    return "\n".join(lines)


def causes(cells: Cells) -> str:
    """Return what averaging after every step costs with AdamW, and what mends it."""
    base = cells.get(_key(BASE.windows), [])
    larger = cells.get(_key(4 * BASE.windows), [])
    ddp, of_larger = find(base, ADAMW_DDP), find(larger, ADAMW_DDP)
    scaled = next((row for row in base if "x DDP" in row.arm), None)
    tests = (
        ("weights averaged after every step, at its own best rate", find(base, EVERY_STEP), ddp),
        ("a: the same with four times the batch, over DDP with it", find(larger, EVERY_STEP), of_larger),
        ("b: v of the common gradient in every step", find(base, EVERY_STEP, "AdamW+common_v"), ddp),
        ("b: v of the common gradient in every 8th step", find(base, EVERY_STEP, "AdamW+common_v(8)"), ddp),
        ("c: own v at DDP's best rate times the root of the ranks", scaled, ddp),
        ("d: own v, averaged in every step", find(base, EVERY_STEP, "AdamW+mean_v"), ddp),
    )
    lines = ["| AdamW | perplexity over DDP |", "|---|--:|"]
    lines += [f"| {what} | {ratio_text(row.over(other))} |" for what, row, other in tests if row and other]
    return "\n".join(lines)


def _key(windows: int) -> tuple[object, ...]:
    return (BASE.size, windows, BASE.ranks, BASE.steps, BASE.decay)


def page(trials: Sequence[Record], trainings: Trainings) -> str:
    """Return all tables."""
    cells = rows(trials, trainings)
    parts = ["# Local steps of language models", f"{len(trainings.records)} trainings."]
    for cell, found in cells.items():
        size, windows, ranks, steps, decay = cell
        parts += [f"## {size} parameters, {windows} windows a step, {ranks} ranks, {steps} steps, {decay} decay"]
        parts += [table(found)]
    return "\n\n".join([*parts, "## What AdamW loses when weights are averaged after every step", causes(cells)]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="file that measure.py has written")
    parser.add_argument("--trials", type=Path, default=LIST, help="list of trials that trials.py has written")
    given = parser.parse_args(argv)
    print(page(read(given.trials), Trainings(given.lines)), end="")


if __name__ == "__main__":
    main()
