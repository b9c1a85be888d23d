"""Initial rows: given, or drawn so that they do not depend on where they live."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pliant.recsys.embedding.groups import PieceSpan
from pliant.recsys.embedding.optimizers import TableRows
from pliant.spec.embedding import Table

__all__ = ["Source", "fill", "parts_of", "random_rows", "source_of"]

Source = Callable[[int, Tensor], Tensor]
"""Takes the index of a table and ids of rows, int64 (num,), and returns these rows, float32 (num, dim)."""

PART_ROWS = 1 << 14
"""Rows handled at a time, so that memory stays bounded."""


def source_of(tables: Sequence[Table], weights: "Sequence[Tensor] | Source | None", seed: int) -> Source:
    """Return where rows come from: full tensors, a function, or drawn with this seed."""
    if weights is None:
        return lambda t, rows: random_rows(tables[t], t, rows, seed)
    if callable(weights):
        return weights
    given = list(weights)
    if len(given) != len(tables):
        raise ValueError(f"there are {len(tables)} tables, but {len(given)} tensors of weights; give one for each.")
    for table, tensor in zip(tables, given, strict=True):
        if tuple(tensor.shape) != (table.num_rows, table.dim):
            raise ValueError(
                f"weights of table {table.name!r} have shape {tuple(tensor.shape)}, but the table has "
                f"{table.num_rows} rows of {table.dim}."
            )
    return lambda t, rows: given[t].detach()[rows.to(given[t].device)]


def random_rows(table: Table, index: int, rows: Tensor, seed: int) -> Tensor:
    """Return rows, int64 (num,), of a new table: uniform within +-num_rows^-1/2, as in DLRM (arXiv:1906.00091).

    Each number is a hash (SplitMix64: Steele, Lea and Flood, 2014) of seed, table, row and column. The row that pads
    is zero.
    """
    columns = torch.arange(table.dim, device=rows.device)
    x = rows[:, None] * table.dim + columns  # (num, dim)
    x = _mixed(x + (index << 44) + _signed(seed * 0x9E3779B97F4A7C15))
    uniform = ((x >> 40) & 0xFFFFFF).float().mul_(2.0**-23).sub_(1.0)  # -1 to below 1
    values = uniform.mul_(table.num_rows**-0.5)
    if table.padding_id is not None:
        values[rows == table.padding_id] = 0.0
    return values


def fill(rows: TableRows, spans: Sequence[PieceSpan], source: Source) -> None:
    """Write the first values of all rows of these spans."""
    device = rows.weights.device
    for span in spans:
        piece = span.piece
        columns = slice(piece.first_column, piece.first_column + piece.dim)
        ids = span.rows(device)
        for part in parts_of(span.num):
            values = source(piece.index, ids[part])
            rows.weights[span.slot + part.start : span.slot + part.stop] = values[:, columns].to(device)


def parts_of(num: int) -> Iterator[slice]:
    """Return slices of so many rows, a part at a time."""
    for at in range(0, num, PART_ROWS):
        yield slice(at, min(num, at + PART_ROWS))


def _signed(x: int) -> int:
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right, with zeros: integers of torch have a sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(x: Tensor) -> Tensor:
    x = x * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)
