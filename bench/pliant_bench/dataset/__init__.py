"""Plans that were run and how long their steps took, as Parquet tables, with what they were run on."""

from pliant_bench.dataset.lines import dataset_of
from pliant_bench.dataset.records import ModelRow, NetworkRow, PlanRow, SimulatedRun
from pliant_bench.dataset.schema import COLUMNS
from pliant_bench.dataset.simulated import append_simulated
from pliant_bench.dataset.store import load, write
from pliant_bench.dataset.tables import Dataset

__all__ = [
    "COLUMNS",
    "Dataset",
    "ModelRow",
    "NetworkRow",
    "PlanRow",
    "SimulatedRun",
    "append_simulated",
    "dataset_of",
    "load",
    "write",
]
