"""Plans that were run and how long their steps took, as Parquet tables, with what they were run on."""

from pliant.planner.dataset.lines import dataset_of
from pliant.planner.dataset.records import Model, Network, Planned, SimulatedRun
from pliant.planner.dataset.schema import COLUMNS
from pliant.planner.dataset.simulated import append_simulated
from pliant.planner.dataset.store import load, write
from pliant.planner.dataset.tables import Dataset

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
