"""The Criteo click logs: the format of their files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from pliant.recsys.batch import ClickBatch
from pliant.recsys.columns import hash_rows
from pliant.recsys.criteo_tables import CRITEO_ROWS
from pliant.spec.reading import require_file, shorten

__all__ = ["NUM_DENSE", "criteo_batches"]

NUM_DENSE = 13
"""Features of a sample that are numbers."""

_NUM_CATEGORIES = len(CRITEO_ROWS)
_LONGEST_LINE = 2048
_HASH_BITS = 60


def criteo_batches(path: str | Path, *, num_rows: Sequence[int], num_samples: int) -> Iterator[ClickBatch]:
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


def _criteo(lines: list[list[str]], num_rows: Sequence[int], where: str) -> ClickBatch:
    cells = np.array(lines)  # (samples, 40) of text
    try:
        dense = np.where(cells[:, 1:14] == "", "0", cells[:, 1:14]).astype(np.float64)
        tokens = [[int(x, 16) if x else -1 for x in column] for column in cells[:, 14:].T.tolist()]
        if not np.isfinite(dense).all() or max(map(max, tokens)) >> _HASH_BITS or min(map(min, tokens)) < -1:
            raise ValueError(f"a number is not finite, or a category has more than {_HASH_BITS} bits")
    except ValueError as error:
        raise ValueError(f"{where}: {error}; 13 whole numbers and 26 hexadecimal categories are expected.") from None
    ids = [hash_rows(np.array(column), rows, t) for t, (column, rows) in enumerate(zip(tokens, num_rows, strict=True))]
    return ClickBatch(
        dense=torch.from_numpy(np.log1p(np.maximum(dense, 0)).astype(np.float32)),
        ids=tuple(map(torch.from_numpy, ids)),
        offsets=(torch.arange(len(lines)),) * _NUM_CATEGORIES,
        label=torch.from_numpy((cells[:, 0] == "1").astype(np.float32)),
    )
