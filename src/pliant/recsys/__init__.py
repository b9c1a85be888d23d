"""Recommendation embeddings: which rows are on which rank, and what travels for them."""

from pliant.recsys.batch import ClickBatch, auc
from pliant.recsys.clicks import Clicks
from pliant.recsys.counting import FrequencyCounter, TableCounter
from pliant.recsys.criteo import CRITEO_BAGS, CRITEO_ROWS, criteo_batches
from pliant.recsys.drift import Drift, drift
from pliant.recsys.gathered import gathered
from pliant.recsys.logs import ClickLog, load_flights, load_movielens, load_table
from pliant.recsys.rows import Frequencies, RowFrequencies
from pliant.recsys.unique import all_hot, seen, unique_by_owner, unique_rows
from pliant.recsys.zipf import ZipfFit, fit_zipf

__all__ = [
    "CRITEO_BAGS",
    "CRITEO_ROWS",
    "ClickBatch",
    "ClickLog",
    "Clicks",
    "Drift",
    "Frequencies",
    "FrequencyCounter",
    "RowFrequencies",
    "TableCounter",
    "ZipfFit",
    "all_hot",
    "auc",
    "criteo_batches",
    "drift",
    "fit_zipf",
    "gathered",
    "load_flights",
    "load_movielens",
    "load_table",
    "seen",
    "unique_by_owner",
    "unique_rows",
]
