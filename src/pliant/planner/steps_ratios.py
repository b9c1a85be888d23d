"""Steps ratios by optimizer, fitted to trainings of several tasks: the table that `benchmarks/quality/fit.py` makes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from pliant.planner.genome import Gene

__all__ = ["STEPS_RATIOS_PATH", "FittedRatio", "fitted_ratios", "read_ratios"]

STEPS_RATIOS_PATH = Path(__file__).with_name("steps_ratios.json")
"""The table that is shipped."""


@dataclass(frozen=True, kw_only=True)
class FittedRatio:
    """Steps to the loss of 16-bit all-reduce, over its own steps, of one way of exchanging with one optimizer."""

    ratio: float
    """Median over tasks of the geometric mean over seeds; infinite if half of the tasks did not come to that loss."""
    highest: float
    """The same of the task on which it was highest."""
    tasks: int
    """Tasks that it was measured on."""
    ranks: int
    """Ranks that trained."""

    @property
    def sentence(self) -> str:
        """Clause on what was measured."""
        return f"{_times(self.ratio)} at the median of {self.tasks} small tasks, {_times(self.highest)} at the worst"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times the steps" if math.isfinite(ratio) else "the loss not reached in twice the steps"


def read_ratios(path: Path) -> dict[str, dict[Gene, FittedRatio]]:
    """Return the rows of a table by optimizer; where one has rows of several numbers of ranks, the fewest count.

    Args:
        path: JSON with "rows", each with family, settings, optimizer, ranks, tasks, and ratio and highest, which are
            null where the loss was not reached.

    """
    found: dict[str, dict[Gene, FittedRatio]] = {}
    for row in sorted(json.loads(path.read_text())["rows"], key=lambda row: row["ranks"]):
        fitted = FittedRatio(
            ratio=math.inf if row["ratio"] is None else row["ratio"],
            highest=math.inf if row["highest"] is None else row["highest"],
            tasks=row["tasks"],
            ranks=row["ranks"],
        )
        found.setdefault(row["optimizer"], {}).setdefault(Gene(row["family"], row["settings"]), fitted)
    return found


@cache
def _shipped() -> dict[str, dict[Gene, FittedRatio]]:
    return read_ratios(STEPS_RATIOS_PATH)


def fitted_ratios(optimizer: str) -> Mapping[Gene, FittedRatio]:
    """Return the shipped rows of an optimizer's class, such as 'AdamW'; empty if it was not measured."""
    return MappingProxyType(_shipped().get(optimizer, {}))
