"""Criteo click logs: the format of their files, and the tables of MLPerf's benchmark on them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.columns import hash_rows
from pliant.spec import Table
from pliant.spec.reading import require_file, shorten

__all__ = ["CRITEO_BAGS", "CRITEO_ROWS", "NUM_DENSE", "CriteoBatch", "criteo_batches", "criteo_tables"]

CRITEO_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
"""Rows of the 26 tables, capped at 40 million."""
CRITEO_BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids in each bag of its multi-hot variant."""
NUM_DENSE = 13
"""Features of a sample that are numbers."""

_NUM_CATEGORIES = len(CRITEO_ROWS)
_LONGEST_LINE = 2048
_HASH_BITS = 60


class CriteoBatch(NamedTuple):
    """Samples of a Criteo log."""

    label: npt.NDArray[np.bool_]
    """(samples,), whether each was clicked"""
    dense: npt.NDArray[np.float64]
    """(samples, 13): log(1 + max(x, 0)) of its numbers, 0 if missing"""
    ids: tuple[npt.NDArray[np.int64], ...]
    """For each of 26 tables (samples,): rows, one for each sample"""


def criteo_tables(dim: int, *, most_rows: int = 40_000_000) -> tuple[Table, ...]:
    """Return the 26 tables; `most_rows` makes them smaller."""
    return tuple(Table(name=f"C{k}", num_rows=min(n, most_rows), dim=dim) for k, n in enumerate(CRITEO_ROWS, start=1))


def criteo_batches(path: str | Path, *, num_rows: Sequence[int], num_samples: int) -> Iterator[CriteoBatch]:
    """Read a Criteo click log, the user's own copy, in batches as it streams by.

    A line is: label, 13 whole numbers, 26 categories of 8 hexadecimal digits, with tabs between; any may be missing but
    the label. Numbers become log(1 + max(x, 0)), 0 if missing. A category is hashed into rows 1 ... num_rows - 1, with
    its column; missing is row 0.

    Raises:
        ValueError: A line has another form, which the message numbers.

    """
    if len(num_rows) != _NUM_CATEGORIES or min(num_rows) < 2 or num_samples < 1:
        raise ValueError(
            f"Criteo has {_NUM_CATEGORIES} categories of at least 2 rows each and batches of at least 1, not "
            f"{len(num_rows)} of at least {min(num_rows, default=0)} and batches of {num_samples}."
        )
    require_file(path)
    with Path(path).open(encoding="ascii", errors="replace") as file:
        lines: list[list[str]] = []
        for n, line in enumerate(file, 1):
            cells = line.rstrip("\r\n").split("\t")
            if len(line) > _LONGEST_LINE:
                raise ValueError(f"line {n} of {path} has {len(line)} characters; those of a Criteo log have some 250.")
            if len(cells) != 1 + NUM_DENSE + _NUM_CATEGORIES or cells[0] not in ("0", "1"):
                raise ValueError(
                    f"line {n} of {path} has {len(cells)} cells and label {shorten(cells[0])}; a Criteo log has "
                    f"{1 + NUM_DENSE + _NUM_CATEGORIES} and label 0 or 1."
                )
            lines.append(cells)
            if len(lines) == num_samples:
                yield _criteo(lines, num_rows, f"{path}, near line {n}")
                lines = []
        if lines:
            yield _criteo(lines, num_rows, f"{path}, at its end")


def _criteo(lines: list[list[str]], num_rows: Sequence[int], where: str) -> CriteoBatch:
    cells = np.array(lines)  # (samples, 40) of text
    try:
        dense = np.where(cells[:, 1:14] == "", "0", cells[:, 1:14]).astype(np.float64)
        tokens = [[int(x, 16) if x else -1 for x in column] for column in cells[:, 14:].T.tolist()]
        if not np.isfinite(dense).all() or max(map(max, tokens)) >> _HASH_BITS or min(map(min, tokens)) < -1:
            raise ValueError(f"a number is not finite, or a category has more than {_HASH_BITS} bits")
    except ValueError as error:
        raise ValueError(f"{where}: {error}; 13 whole numbers and 26 hexadecimal categories are expected.") from None
    ids = [hash_rows(np.array(column), rows, t) for t, (column, rows) in enumerate(zip(tokens, num_rows, strict=True))]
    return CriteoBatch(cells[:, 0] == "1", np.log1p(np.maximum(dense, 0)), tuple(ids))
