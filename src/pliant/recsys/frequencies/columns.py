"""Columns of text files, and rows of tables that their values are hashed into."""

import csv
import hashlib
import io
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.hashing import hashed
from pliant.spec.reading import read_text, require_file, shorten

__all__ = ["MISSING", "Columns", "hash_rows", "number", "read_columns", "read_table"]

Columns = dict[str, npt.NDArray[np.str_]]
MISSING = ("", "NA", "nan", "None")
"""Texts of a cell that has no value."""
_MOST_BYTES = 1 << 36
_SHOWN = 300
"""Characters of a header that an error quotes."""


def read_table(path: str | Path, wanted: Sequence[str], *, separator: str = ",") -> Columns:
    """Read the wanted columns of a CSV or Parquet file (.parquet, which needs pyarrow) as text (lines,).

    Raises:
        ValueError: A column is missing, a line has more or fewer cells than the header, or the file is something else.

    """
    if Path(path).suffix == ".parquet":
        return _read_parquet(Path(path), wanted)
    return read_columns(read_text(path, most_bytes=_MOST_BYTES), str(path), separator, wanted)


def read_columns(text: str, name: str, separator: str, wanted: Sequence[str]) -> Columns:
    """Read text with a header line into the wanted columns of text (lines,).

    Raises:
        ValueError: A column is missing, a line has more or fewer cells than the header, or there are no lines.

    """
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    header = next(lines, [])
    for column in wanted:
        if column not in header:
            raise ValueError(f"{name} has no column {column!r}; it has {_named(header)}.")
    pick = itemgetter(*(header.index(column) for column in wanted), 0)  # one more, so that it is always a tuple
    body: list[tuple[str, ...]] = []
    for line in lines:
        if line and len(line) != len(header):
            raise ValueError(f"line {lines.line_num} of {name} has {len(line)} cells, its header {len(header)}.")
        if line:
            body.append(pick(line))
    if not body:
        raise ValueError(f"{name} has no lines after its header.")
    return {column: np.array(values) for column, values in zip(wanted, zip(*body, strict=True), strict=False)}


def _read_parquet(path: Path, wanted: Sequence[str]) -> Columns:
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ImportError:
        raise ValueError(
            f"{path} is a Parquet file, and pyarrow, which reads it, is not installed; install it, or give CSV."
        ) from None
    require_file(path)
    try:
        file = parquet.ParquetFile(path)
        has = file.schema_arrow.names
        table = file.read(columns=[column for column in wanted if column in has])
    except (OSError, MemoryError, ArrowException) as error:
        raise ValueError(f"{path} is no Parquet file that can be read ({shorten(str(error))}).") from None
    for column in wanted:
        if column not in has:
            raise ValueError(f"{path} has no column {column!r}; it has {', '.join(has)}.")
    return {name: np.array(["" if v is None else str(v) for v in table[name].to_pylist()]) for name in wanted}


def _named(header: Sequence[str]) -> str:
    text = ", ".join(header)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def number(columns: Columns, name: str) -> npt.NDArray[np.float64]:
    """Return a column of numbers, float64 (lines,), NaN where one is missing.

    Raises:
        ValueError: Something else is in it.

    """
    values = columns[name]
    try:
        return np.where(np.isin(values, MISSING), "nan", values).astype(np.float64)
    except ValueError as error:
        raise ValueError(f"column {name!r} holds what is not a number: {error}.") from None


def hash_rows(values: npt.NDArray[Any], num_rows: int, seed: int) -> npt.NDArray[np.int64]:
    """Return rows int64 (samples,) in 1 ... num_rows - 1 by a hash that is the same on every machine; 0 for missing.

    Values are text, or whole numbers with -1 for missing. Different columns have different seeds.
    """
    if num_rows < 2:
        raise ValueError(f"a hashed column needs at least 2 rows, one of them for what is missing, not {num_rows}.")
    if values.dtype.kind in "iu":
        missing, keys = values < 0, values.astype(np.int64)
    else:
        missing = np.isin(values, MISSING)
        known, which = np.unique(values, return_inverse=True)
        keys = np.array([_key(value) for value in known.tolist()], dtype=np.int64)[which]
    rows = 1 + (hashed(keys, seed) % np.uint64(num_rows - 1)).astype(np.int64)
    return np.where(missing, 0, rows)


def _key(value: str) -> int:
    """Return 63 bits of a text that are the same in every process, unlike Python's own hash."""
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little") >> 1
