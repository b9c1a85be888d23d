"""Shards of a parameter group that travel alike, as one vector without padding: rank 0's, then rank 1's, and so on."""

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from pliant.collectives.pieces import CodedPiece, piece_bytes, pieces_of
from pliant.collectives.scratch import Scratch
from pliant.comm.fsdp_private import ParamGroup
from pliant.layouts.shards import CHUNK_BYTES, Column, packed_runs

__all__ = ["PackedShards", "columns_of", "exact_columns"]


def columns_of(group: ParamGroup, names: Sequence[str], size: int, only: Container[str]) -> list[Column]:
    """Return where each of some parameters lies in a rank's row, in the order of the group.

    Args:
        group: The group.
        names: Names of all its parameters.
        size: Ranks among which they are divided.
        only: Those that are in the row: all in a gather, those that are trained in a reduce-scatter.

    """
    columns: list[Column] = []
    offset = 0
    valid = [group.valid_numels(rank) for rank in range(size)]
    for k, (name, padded) in enumerate(zip(names, group.padded_numels, strict=True)):
        if name not in only:
            continue
        columns.append(Column(name=name, offset=offset, padded=padded, valid=tuple(own[k] for own in valid)))
        offset += padded
    return columns


def exact_columns(columns: Sequence[Column]) -> list[Column]:
    """Return columns that travel with what fills them up, so that rows need not be copied."""
    return [Column(name=c.name, offset=c.offset, padded=c.padded, valid=(c.padded,) * len(c.valid)) for c in columns]


class PackedShards:
    """Place of some parameters' shards in the rows of a collective, and in a vector of their own.

    Args:
        columns: Places in a row, the same on all ranks.
        row_numel: Elements of a row.
        size: Ranks among which parameters are divided.
        rank: This rank among them.

    """

    def __init__(self, columns: Sequence[Column], row_numel: int, size: int, rank: int) -> None:
        self.columns, self._rank = columns, rank
        self._runs = [packed_runs(columns, r) for r in range(size)]
        self.numels = [sum(stop - start for start, stop in runs) for runs in self._runs]
        """Elements of each rank's part of the vector."""
        starts = [sum(self.numels[:r]) for r in range(size)]
        self.parts = [slice(start, start + numel) for start, numel in zip(starts, self.numels, strict=True)]
        self._is_whole = all(runs == [(0, row_numel)] for runs in self._runs)

    @property
    def numel(self) -> int:
        """Elements of the vector."""
        return sum(self.numels)

    def pieces(self, granularity: int, device: torch.device) -> list[list[CodedPiece]]:
        """Return each rank's part of the vector, cut so that coding on a device and the wire overlap."""
        most = piece_bytes(CHUNK_BYTES, device)
        return [pieces_of(CodedPiece(start=p.start, stop=p.stop), most, granularity) for p in self.parts]

    def room(self, rows: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
        """Return a vector for `unpack`, not filled; it is the rows, (size, row_numel), where nothing is left out."""
        if self._is_whole and rows.dtype == dtype:
            return rows.view(-1)
        return scratch.take("packed", (self.numel,), dtype)

    def pack(self, rows: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
        """Return the vector of rows, (size, row_numel); it is the rows themselves where nothing is left out."""
        vector = self.room(rows, dtype, scratch)
        for rank, row in enumerate(rows):
            self._pack_row(rank, row, vector[self.parts[rank]])
        return vector

    def pack_own(self, rows: Tensor, out: Tensor) -> None:
        """Copy this rank's part of rows into out, of the length of this rank's part."""
        self._pack_row(self._rank, rows[self._rank], out)

    def unpack_own(self, part: Tensor, row: Tensor) -> None:
        """Put this rank's part of a vector where it belongs in a row of its own, (row_numel,)."""
        self._unpack_row(self._rank, part, row)

    def unpack(self, vector: Tensor, rows: Tensor) -> None:
        """Put a vector where it belongs in rows, (size, row_numel); what fills them up stays as it is."""
        for rank, row in enumerate(rows):
            self._unpack_row(rank, vector[self.parts[rank]], row)

    def _pack_row(self, rank: int, row: Tensor, part: Tensor) -> None:
        at = 0
        for start, stop in self._runs[rank]:
            _copy(row[start:stop], part[at : at + stop - start])
            at += stop - start

    def _unpack_row(self, rank: int, part: Tensor, row: Tensor) -> None:
        at = 0
        for start, stop in self._runs[rank]:
            _copy(part[at : at + stop - start], row[start:stop])
            at += stop - start


def _copy(source: Tensor, into: Tensor) -> None:
    if not into.is_set_to(source):
        into.copy_(source)
