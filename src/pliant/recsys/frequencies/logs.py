"""Click logs of the user's own, counted as they are read: Criteo's format, CSV or Parquet."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pliant.recsys.frequencies.columns import hash_rows, number, read_table
from pliant.recsys.frequencies.counting import FrequencyCounter
from pliant.recsys.frequencies.criteo import criteo_batches
from pliant.recsys.frequencies.rows import Frequencies

__all__ = ["count_log"]

_SAMPLES = 65_536
"""Samples of a Criteo log that are read at once."""


def count_log(path: str | Path, num_rows: Mapping[str, int], *, label: str = "") -> Frequencies:
    """Count how often a log looks up each row, its categories hashed into the rows of tables.

    Args:
        path: A file in Criteo's format, or, with a label, a CSV or Parquet file (.parquet, which needs pyarrow).
        num_rows: Rows of each table, by its name; in CSV and Parquet also that of its column.
        label: The column that holds 0 and 1.

    Raises:
        ValueError: A column is missing, or a value is not what it should be.

    """
    counter = FrequencyCounter(list(num_rows.values()), names=list(num_rows))
    if label:
        columns = read_table(path, [label, *num_rows])
        clicked = number(columns, label)
        if not np.isin(clicked, (0, 1)).all():
            wrong = clicked[~np.isin(clicked, (0, 1))][0]
            raise ValueError(f"column {label!r} of {path} must hold 0 and 1, but has {wrong}.")
        counter.add([hash_rows(columns[name], rows, t) for t, (name, rows) in enumerate(num_rows.items())])
    else:
        for batch in criteo_batches(path, num_rows=list(num_rows.values()), num_samples=_SAMPLES):
            counter.add(batch.ids)
    return counter.result()
