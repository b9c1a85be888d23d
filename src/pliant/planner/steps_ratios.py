"""Steps ratios by optimizer and size of the training: the table that `benchmarks/quality/fit.py` makes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from pliant.planner.genome import Gene
from pliant.spec import Topology, Workload

__all__ = [
    "STEPS_RATIOS_PATH",
    "UNKNOWN_SCALE",
    "FittedRatio",
    "Scale",
    "fitted_ratios",
    "read_ratios",
    "refused_around",
    "row_for",
]

STEPS_RATIOS_PATH = Path(__file__).with_name("steps_ratios.json")
"""The table that is shipped."""


class Scale(NamedTuple):
    """Size of a training, for which rows of the table are chosen."""

    parameters: int = 0
    """Elements of all parameters; 0 where they are not known, and then rows of models of a known size do not count."""
    ranks: int = 0
    """Ranks that train; 0 where they are not known, and then the rows of the fewest count."""
    steps: int = 0
    """Steps of the whole training; 0 where they are not known, and then the worst of all lengths counts."""

    @classmethod
    def of(cls, workload: Workload, topology: Topology, steps: int = 0) -> Self:
        """Return the size of a training of so many steps, or of any number, on all ranks of a topology."""
        return cls(workload.numel, topology.num_ranks, steps)


UNKNOWN_SCALE = Scale()
"""Size of a training of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class FittedRatio:
    """Steps to the loss of 16-bit all-reduce, over its own steps, of one way of exchanging with one optimizer."""

    ratio: float
    """Median over tasks of the geometric mean over seeds; infinite if half of the tasks did not come to that loss."""
    highest: float
    """The same of the task on which it was highest."""
    tasks: int
    """Tasks that it was measured on: models with their data, or batches and decays of the rate for one model."""
    ranks: int
    """Ranks that trained."""
    parameters: int = 0
    """Parameters of the model; 0 where tasks had several small models, so that the row counts for any."""
    steps: int = 0
    """Steps of 16-bit all-reduce in a training; 0 where tasks had several lengths."""
    limit: float = 2.0
    """Ratio at which a training that had not come to the loss ended."""
    beyond: str = ""
    """Clause on why it says nothing of a training; empty where it does."""

    @property
    def worst(self) -> float:
        """Ratio that counts against a limit: the highest, infinite for a training beyond what was measured."""
        return math.inf if self.beyond else self.highest

    @property
    def sentence(self) -> str:
        """Clause on what was measured."""
        told = self._times(self.ratio)
        if self.tasks > 1:
            told += f" at the median of {self.tasks} small tasks, {self._times(self.highest)} at the worst"
        if self.parameters:
            size = f"{self.parameters / 1e6:.3g} M parameters on {self.ranks} ranks in {self.steps:,} steps"
            told += f", measured with {size}"
        return told

    def _times(self, ratio: float) -> str:
        if math.isfinite(ratio):
            return f"{ratio:.2f} times the steps"
        return f"the loss not reached in {self.limit:g} times the steps"


def read_ratios(path: Path) -> dict[str, dict[Gene, list[FittedRatio]]]:
    """Return the rows of a table by optimizer and way of exchanging.

    Args:
        path: JSON with "rows", each with family, settings, optimizer, ranks, tasks, and ratio and highest, which are
            null where the loss was not reached; rows of one size have parameters, steps and limit as well.

    """
    found: dict[str, dict[Gene, list[FittedRatio]]] = {}
    for row in json.loads(path.read_text())["rows"]:
        fitted = FittedRatio(
            ratio=math.inf if row["ratio"] is None else row["ratio"],
            highest=math.inf if row["highest"] is None else row["highest"],
            **{key: row[key] for key in ("tasks", "ranks", "parameters", "steps", "limit") if key in row},
        )
        gene = Gene(row["family"], row["settings"])
        found.setdefault(row["optimizer"], {}).setdefault(gene, []).append(fitted)
    return found


@cache
def _shipped() -> dict[str, dict[Gene, list[FittedRatio]]]:
    return read_ratios(STEPS_RATIOS_PATH)


@lru_cache(maxsize=64)
def fitted_ratios(optimizer: str, scale: Scale = UNKNOWN_SCALE) -> Mapping[Gene, FittedRatio]:
    """Return the shipped row of each way of exchanging that judges a training; empty for an optimizer without any.

    A row counts for models that are at least as large, since published trainings say that relaxations cost no more on
    them. It counts for at most as many ranks where ranks' weights differ, and for any number where all ranks add up
    gradients in each step, whose errors more ranks average. It counts for trainings that are at least as long, since
    relaxations cost most at the beginning. Of those that count, the nearest in size is taken, then the nearest in
    ranks, then the longest if the training's length is known, then the worst. Where none counts, one of most ranks says
    why, as `beyond`.

    Args:
        optimizer: Class, such as 'AdamW', or classes, such as 'AdamW and Muon', which count as 'Muon'.
        scale: Size of the training.

    """
    rows = _shipped().get(_measured_as(optimizer), {})
    return MappingProxyType({gene: _judging(gene, each, scale) for gene, each in rows.items()})


def row_for(gene: Gene, optimizer: str, scale: Scale = UNKNOWN_SCALE) -> FittedRatio | None:
    """Return the row that judges a gene: its own, or the mildest of those at least as strong that came to the loss."""
    fitted = fitted_ratios(optimizer, scale)
    if gene in fitted:
        return fitted[gene]
    alike = (row for other, row in fitted.items() if math.isfinite(row.worst) and gene.is_within(other))
    return min(alike, key=lambda row: (row.worst, row.ratio), default=None)


def refused_around(gene: Gene, optimizer: str, scale: Scale = UNKNOWN_SCALE) -> tuple[Gene, FittedRatio] | None:
    """Return the mildest setting that is at least as strong and within no limit, with its row.

    It did not come to the loss on each task, or not on so many ranks. None for a gene that a row judges (`row_for`).
    """
    if row_for(gene, optimizer, scale) is not None:
        return None
    fitted = fitted_ratios(optimizer, scale).items()
    found = [(other, row) for other, row in fitted if math.isinf(row.worst) and gene.is_within(other)]
    return min(found, key=lambda pair: pair[1].ratio, default=None)


def _measured_as(optimizer: str) -> str:
    """Return the name that the table has for optimizers: Muon, which has matrices alone, stands for it with AdamW."""
    return "Muon" if set(optimizer.split(" and ")) == {"AdamW", "Muon"} else optimizer


def _judging(gene: Gene, rows: Sequence[FittedRatio], scale: Scale) -> FittedRatio:
    least = scale.ranks if gene.exchange.weights_may_diverge else 0
    most = scale.steps or math.inf
    counting = [r for r in rows if r.parameters <= scale.parameters and least <= r.ranks and r.steps <= most]
    if counting:
        return min(counting, key=lambda row: _farness(row, scale))
    ours = f"{scale.ranks} ranks or more with {scale.parameters / 1e6:.3g} M parameters or fewer"
    ours += f" in {scale.steps:,} steps or fewer" if scale.steps else ""
    return replace(max(rows, key=lambda row: (row.ranks, -row.parameters)), beyond=f"nothing was measured on {ours}")


def _farness(row: FittedRatio, scale: Scale) -> tuple[float, ...]:
    """Return what is least for the row that is nearest to a training, and among equally near ones for the worst."""
    length = -row.steps if scale.steps else 0
    return -row.parameters, abs(row.ranks - scale.ranks), length, -row.highest, -row.ratio
