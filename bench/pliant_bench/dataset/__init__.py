"""Plans that were run and how long their steps took, as Parquet tables, with what they were run on."""

from pliant_bench.dataset.lines import dataset_of
from pliant_bench.dataset.records import Model, Network, Planned, SimulatedRun
from pliant_bench.dataset.schema import COLUMNS
from pliant_bench.dataset.simulated import append_simulated
from pliant_bench.dataset.store import load, write
from pliant_bench.dataset.tables import Dataset

__all__ = [
    "COLUMNS",
    "Dataset",
    "Model",
    "Network",
    "Planned",
    "SimulatedRun",
    "append_simulated",
    "dataset_of",
    "load",
    "write",
]
