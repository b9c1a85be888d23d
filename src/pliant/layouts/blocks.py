"""Division of tensors into blocks, and the number of them that a ratio of bytes pays for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.layouts.payloads import payload_bytes
from pliant.spec.codecs import CodecSpec
from pliant.spec.selection import VALUE_BYTES, Selection, ValueBits

__all__ = ["BlockDivision", "SegmentedRows", "divide_blocks", "row_blocks", "values_bytes"]


@dataclass(frozen=True, kw_only=True)
class SegmentedRows:
    """A tensor as rows of equal length, each cut into segments of equal length and what is left."""

    num_rows: int
    numel: int
    """Elements of a row."""
    segment: int
    """Elements of each block of a row but its last, which may be shorter."""

    @property
    def per_row(self) -> int:
        """Blocks of a row."""
        return -(-self.numel // self.segment)

    @property
    def num_blocks(self) -> int:
        """Blocks of the tensor."""
        return self.num_rows * self.per_row

    @property
    def numels(self) -> tuple[int, ...]:
        """Elements of each block, in the order in which they lie in the tensor."""
        last = self.numel - (self.per_row - 1) * self.segment
        return ((self.segment,) * (self.per_row - 1) + (last,)) * self.num_rows


def row_blocks(shape: tuple[int, ...], block: int) -> SegmentedRows | None:
    """Return the rows of a tensor, which lie along its first dimension; a vector is one row. None if it is empty.

    Args:
        shape: Of the tensor.
        block: Most elements of a block; 0 for whole rows.

    """
    numel = math.prod(shape)
    if not numel:
        return None
    num_rows = shape[0] if len(shape) > 1 else 1
    length = numel // num_rows
    return SegmentedRows(num_rows=num_rows, numel=length, segment=min(block or length, length))


@dataclass(frozen=True, kw_only=True)
class BlockDivision:
    """Tensors of one exchange: those that stay dense, and the blocks of the others."""

    selection: Selection
    num_ranks: int
    dense: tuple[bool, ...]
    """Flag per tensor: whether all of it is sent in every exchange."""
    numel: int
    numel_dense: int
    num_blocks: int
    """Blocks of the tensors that do not stay dense."""
    largest: int
    """Elements of the largest block."""

    @property
    def numel_blocks(self) -> int:
        """Number of elements in blocks."""
        return self.numel - self.numel_dense

    @property
    def mask_bytes(self) -> int:
        """Bytes of a bit for each block; a leader's are padded so that ranks share them evenly."""
        granule = self.num_ranks if self.selection.agreement == "leader" else 4
        return -(-math.ceil(self.num_blocks / 8) // granule) * granule

    def room(self, ratio: float) -> int:
        """Return the elements in blocks that a ratio pays for: at least one block, at most all.

        An all-reduce of x bytes sends 2 (n-1)/n x out of each of n ranks, a leader's mask of m bytes (n-1)/n m on
        average, an all-gather (n-1) times its payload. So in units of an all-reduce's bytes, with v bytes an element:
        4 ratio N = v (dense + room) + scores, or v (dense + room) + m/2, or v dense + n/2 (m + v room).
        """
        if ratio >= 1:
            return self.numel_blocks
        sel = self.selection
        left = 4 * ratio * self.numel - sel.value_bytes * self.numel_dense
        if sel.agreement == "global":
            left -= sel.score_bytes(self.num_blocks)
        elif sel.agreement == "leader":
            left -= self.mask_bytes / 2
        else:
            left = left * 2 / self.num_ranks - self.mask_bytes
        return min(max(int(left / sel.value_bytes), self.largest), self.numel_blocks)

    def bits(self, ratio: float) -> ValueBits:
        """Return the bits of an element on the wire: the most in which a ratio pays for all, or those asked for."""
        for bits, size in VALUE_BYTES.items():
            if bits > self.selection.value_bits and self.is_whole(ratio) and size <= 4 * ratio:
                return bits
        return self.selection.value_bits

    def is_whole(self, ratio: float) -> bool:
        """Say whether a ratio pays for everything, so that nothing is selected and no score is sent."""
        return self.room(ratio) >= self.numel_blocks

    def message_numel(self, ratio: float) -> int:
        """Return the elements of the message that is averaged: dense tensors, chosen blocks, scores; and filled up.

        A multiple of the number of ranks, so that each sends as much. Of local choices only the dense tensors.
        """
        numel = self.numel_dense
        if self.is_whole(ratio):
            numel = self.numel
        elif self.selection.agreement != "local":
            numel += self.room(ratio) + self.selection.num_told(self.num_blocks)[1]
        return -(-numel // self.num_ranks) * self.num_ranks

    def payload_bytes(self, ratio: float) -> int:
        """Return the bytes that each rank gives to an all-gather of its own blocks: rows of a multiple of 4."""
        if self.selection.agreement != "local" or self.is_whole(ratio):
            return 0
        return self.mask_bytes + -(-values_bytes(self.room(ratio), self.selection.value_bits) // 4) * 4

    def told_numel(self, ratio: float) -> int:
        """Return the scores, of 16 bits, that are told in a message of their own, filled up like the other."""
        apart = 0 if self.is_whole(ratio) else self.selection.num_told(self.num_blocks)[0]
        return -(-apart // self.num_ranks) * self.num_ranks


def values_bytes(numel: int, bits: ValueBits) -> int:
    """Return the exact bytes of so many values on the wire."""
    return payload_bytes(CodecSpec(name="int4"), numel) if bits == 4 else int(VALUE_BYTES[bits]) * numel


def divide_blocks(shapes: Sequence[tuple[int, ...]], selection: Selection, num_ranks: int) -> BlockDivision:
    """Say which tensors stay dense: vectors first, then the smallest, as long as they keep within their share of bytes.

    At a ratio of 1 all do.
    """
    numels = [math.prod(shape) for shape in shapes]
    left = selection.dense * 4 * selection.ratio * sum(numels) if selection.ratio < 1 else math.inf
    dense = [numel == 0 for numel in numels]
    for k in sorted(range(len(shapes)), key=lambda k: (len(shapes[k]) > 1, numels[k], shapes[k])):
        left -= selection.value_bytes * numels[k]
        if left < 0:
            break
        dense[k] = True
    rows = [row_blocks(shape, selection.block) for shape, whole in zip(shapes, dense, strict=True) if not whole]
    return BlockDivision(
        selection=selection,
        num_ranks=num_ranks,
        dense=tuple(dense),
        numel=sum(numels),
        numel_dense=sum(numel for numel, whole in zip(numels, dense, strict=True) if whole),
        num_blocks=sum(r.num_blocks for r in rows if r is not None),
        largest=max((r.segment for r in rows if r is not None), default=0),
    )
