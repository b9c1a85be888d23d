"""Recommendation embeddings: which rows are on which rank, and what travels for them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pliant.recsys.bins import RowBins
from pliant.recsys.cost import StepCost, step_cost
from pliant.recsys.counted import counted
from pliant.recsys.criteo_tables import CRITEO_BAGS, CRITEO_ROWS, criteo_tables
from pliant.recsys.drift import Drift, drift
from pliant.recsys.expected import expected
from pliant.recsys.explain import Reason
from pliant.recsys.memory import Memory, held
from pliant.recsys.place import EmbeddingPlacement, place
from pliant.recsys.problem import Limits, Problem, Valued
from pliant.recsys.rates import Rates, fitted
from pliant.recsys.rows import Frequencies, RowFrequencies
from pliant.recsys.traffic import Sync, Traffic
from pliant.recsys.unique import all_hot, seen, unique_by_owner, unique_rows
from pliant.recsys.zipf import ZipfFit, fit_zipf

if TYPE_CHECKING:
    from pliant.recsys.batch import ClickBatch, auc
    from pliant.recsys.clicks import Clicks
    from pliant.recsys.counting import FrequencyCounter, TableCounter
    from pliant.recsys.criteo import criteo_batches
    from pliant.recsys.gathering import gathered
    from pliant.recsys.logs import ClickLog, load_flights, load_movielens, load_table
    from pliant.recsys.measuring import measured_rates
    from pliant.recsys.module import ShardedEmbeddingBag
    from pliant.recsys.stats import Stats

__all__ = [
    "CRITEO_BAGS",
    "CRITEO_ROWS",
    "ClickBatch",
    "ClickLog",
    "Clicks",
    "Drift",
    "EmbeddingPlacement",
    "Frequencies",
    "FrequencyCounter",
    "Limits",
    "Memory",
    "Problem",
    "Rates",
    "Reason",
    "RowBins",
    "RowFrequencies",
    "ShardedEmbeddingBag",
    "Stats",
    "StepCost",
    "Sync",
    "TableCounter",
    "Traffic",
    "Valued",
    "ZipfFit",
    "all_hot",
    "auc",
    "counted",
    "criteo_batches",
    "criteo_tables",
    "drift",
    "expected",
    "fit_zipf",
    "fitted",
    "gathered",
    "held",
    "load_flights",
    "load_movielens",
    "load_table",
    "measured_rates",
    "place",
    "seen",
    "step_cost",
    "unique_by_owner",
    "unique_rows",
]

# What counts, draws and measures needs torch, and whoever only plans must not wait for it.
_LATE = {
    "ClickBatch": "pliant.recsys.batch",
    "auc": "pliant.recsys.batch",
    "Clicks": "pliant.recsys.clicks",
    "FrequencyCounter": "pliant.recsys.counting",
    "TableCounter": "pliant.recsys.counting",
    "criteo_batches": "pliant.recsys.criteo",
    "gathered": "pliant.recsys.gathering",
    "ClickLog": "pliant.recsys.logs",
    "load_flights": "pliant.recsys.logs",
    "load_movielens": "pliant.recsys.logs",
    "load_table": "pliant.recsys.logs",
    "measured_rates": "pliant.recsys.measuring",
    "ShardedEmbeddingBag": "pliant.recsys.module",
    "Stats": "pliant.recsys.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"pliant.recsys has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_LATE[name]), name)
