"""What is measured: cells of the table, and one set of ranks as data. No torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = Path.home() / ".cache" / "pliant" / "peers" / "torchrec" / "bin" / "python"
"""The interpreter of all ranks, which has TorchRec; benchmarks/recsys/install makes it."""
SOURCES, EXAMPLES = HERE.parents[1] / "src", HERE.parents[1] / "examples"

UNLIMITED = "none"
"""The rate at which arms are also timed, to see which part of their steps is due to the links."""

TORCHREC: dict[str, dict[str, Any]] = {
    "torchrec row_wise": {"kinds": "row_wise"},
    "torchrec table_wise": {"kinds": "table_wise"},
    "torchrec column_wise": {"kinds": "column_wise"},
    "torchrec planner": {"kinds": "planner"},
    "torchrec planner, row_wise too": {"kinds": "all"},
    "torchrec planner, ids ahead": {"kinds": "planner", "ahead": True},
    "torchrec table_wise, ids ahead": {"kinds": "table_wise", "ahead": True},
    "torchrec table_wise, fp16": {"kinds": "table_wise", "bits": 16},
}
PLIANT = {
    "plain rows": "row-wise, each id's row, as often as it comes",
    "pliant rows": "row-wise, distinct rows",
    "pliant pooled": "each table at one rank, which pools",
    "pliant": "the placement for this cell, synchronous, float32",
    "pliant, ids ahead": "the same, and the next batch's exchange beside the dense part",
    "pliant lazy": "placed with rows on all ranks synchronized every 8 steps",
    "pliant 16 bits": "placed with 16 bits allowed",
    "pliant lazy 16 bits": "both",
}
ARMS = (*TORCHREC, *PLIANT)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of data and one limit of memory: what one set of ranks measures, at several rates in turn."""

    pooling: int
    """Ids of each bag."""
    skew: float
    """Exponent of the law of the rows."""
    memory: str
    """Limit for each rank, as in '64MB', of all that rows take; 'any': none."""

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"pooling {self.pooling}, skew {self.skew:g}, memory {self.memory}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one set of ranks does."""

    pooling: int
    skew: float
    memory_bytes: float
    """That a rank may use for rows; 0: any number."""
    num_rows: tuple[int, ...]
    """Of each table."""
    dim: int
    batch: int
    """Samples of a rank in a step."""
    optimizer: str
    """Of rows: sgd, adagrad, rowwise_adagrad or adam."""
    lr: float
    arms: tuple[str, ...]
    rates: tuple[str, ...]
    """In the order in which they are measured."""
    topologies: tuple[str, ...]
    """A file for each rate."""
    flags: str
    """Folder in which both sides say how far they are."""
    rounds: int
    window_s: float
    """The least time that an arm is timed for in a round."""
    longest_s: float
    """Arms whose step would take longer, by the bytes they send, are not timed at that rate."""
    distinct_batches: int
    """That the timed steps go through, over and over."""
    train_steps: int
    """On data that does not repeat, before AUC; 0: no AUC."""
    test_batches: int
    """Of each rank, for AUC."""
    seed: int
    machine: dict[str, Any]
    """Rates of the machine, for Pliant's planner; none: they are measured."""

    @staticmethod
    def read(path: Path) -> "Job":
        """Return the job in a file."""
        body = json.loads(path.read_text(encoding="utf-8"))
        return Job(**{k: tuple(v) if isinstance(v, list) else v for k, v in body.items()})


def capped(num_rows: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the tables' sizes, none above `most`."""
    return tuple(min(rows, most) for rows in num_rows)
