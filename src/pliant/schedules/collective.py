"""Task of a schedule: the ranks that hold a partial sum of each block, and the ranks that need the whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Collective", "MergedCollective", "merge_blocks"]

_PIECES_PER_RANK = 8
"""So many super-blocks per rank divide work among owners to a few percent."""
_PIECES = 128
"""Pieces for many ranks: in all, or one per rank, so that schedules stay short enough to try dozens."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A sum over ranks of vectors in blocks, as pre- and postcondition.

    Before: the ranks in `holders[b]` each have a partial sum of block b; all others' are zero, and not sent. After: the
    ranks in `needers[b]` have the sum over all holders. All ranks need all blocks: a sparse all-reduce; one needs each:
    a sparse reduce-scatter.
    """

    num_ranks: int
    block_bytes: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    """Block -> ranks, ascending."""
    needers: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or not len(self.block_bytes) == len(self.holders) == len(self.needers):
            raise ValueError(
                f"{self.num_ranks} ranks with sizes of {len(self.block_bytes)} blocks, holders of {len(self.holders)} "
                f"and needers of {len(self.needers)} are no collective; give at least one rank and one of each a block."
            )
        if min(self.block_bytes, default=0) < 0:
            num_bytes = min(self.block_bytes)
            raise ValueError(
                f"block {self.block_bytes.index(num_bytes)} has {num_bytes} bytes, but a size is at least 0."
            )
        for named in (self.holders, self.needers):
            for ranks in set(named):  # most blocks have the same ones
                if list(ranks) != sorted(set(ranks)) or (ranks and not 0 <= ranks[0] <= ranks[-1] < self.num_ranks):
                    raise ValueError(
                        f"block {named.index(ranks)} names the ranks {ranks}, but they must be ascending and within "
                        f"0..{self.num_ranks - 1}."
                    )

    @classmethod
    def of(cls, bitmap: Any, block_bytes: int | Sequence[int], needers: Sequence[Sequence[int]] | None = None) -> Self:
        """Return the collective of a bitmap, (num_ranks, num_blocks), of the blocks that are not zero.

        Args:
            bitmap: True where a rank holds a block.
            block_bytes: Of every block, or of each.
            needers: Block -> ranks that need its sum; None: all ranks need all.

        Raises:
            ValueError: The bitmap has no two dimensions, or sizes or needers are not for as many blocks.

        """
        held: NDArray[np.bool_] = np.asarray(bitmap, dtype=bool)
        if held.ndim != 2:
            raise ValueError(f"the bitmap has the shape {held.shape}, but needs two sides: (ranks, blocks).")
        num_ranks, num_blocks = held.shape
        everybody = tuple(range(num_ranks))
        columns = [column.tobytes() for column in np.ascontiguousarray(held.T)]
        ranks = {column: tuple(np.flatnonzero(np.frombuffer(column, bool)).tolist()) for column in set(columns)}
        return cls(
            num_ranks=num_ranks,
            block_bytes=(block_bytes,) * num_blocks if isinstance(block_bytes, int) else tuple(block_bytes),
            holders=tuple(ranks[column] for column in columns),
            needers=(everybody,) * num_blocks if needers is None else tuple(tuple(sorted(n)) for n in needers),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks, empty ones too."""
        return len(self.block_bytes)

    @property
    def dense_bytes(self) -> int:
        """Bytes that move, if all ranks have and need all of them; else 0."""
        moving = [b for b, held in enumerate(self.holders) if held]
        ends = {ranks for b in moving for ranks in (self.holders[b], self.needers[b])}
        dense = self.num_ranks > 1 and ends == {tuple(range(self.num_ranks))}
        return sum(self.block_bytes[b] for b in moving) if dense else 0


@dataclass(frozen=True, kw_only=True)
class MergedCollective:
    """A collective over merged blocks, and the blocks of each."""

    collective: Collective
    members: tuple[tuple[int, ...], ...]
    """Merged block -> its blocks, ascending. Blocks without holders or needers are in none: they do not move."""


def merge_blocks(collective: Collective, num_pieces: int = 0) -> MergedCollective:
    """Return the collective with blocks of the same holders and needers merged into super-blocks of about equal size.

    A schedule can treat a whole run of such blocks alike, so programs and verifier have less work. A class of blocks is
    cut into pieces of 1/num_pieces of all bytes with a holder, so that owners can share it; `num_pieces` is 8 per rank
    if 0, for more than 16 ranks fewer.
    """
    classes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for b, key in enumerate(zip(collective.holders, collective.needers, strict=True)):
        if all(key):
            classes.setdefault(key, []).append(b)
    sizes = collective.block_bytes
    total_bytes = sum(sizes[b] for blocks in classes.values() for b in blocks)
    num_ranks = collective.num_ranks
    piece_bytes = total_bytes / (num_pieces or max(num_ranks, min(_PIECES_PER_RANK * num_ranks, _PIECES)))
    pieces: list[tuple[int, ...]] = []
    for blocks in classes.values():
        class_bytes = sum(sizes[b] for b in blocks)
        parts = min(len(blocks), max(1, round(class_bytes / piece_bytes))) if piece_bytes else 1
        pieces += _cut(blocks, sizes, class_bytes / parts)
    return MergedCollective(
        collective=Collective(
            num_ranks=num_ranks,
            block_bytes=tuple(sum(sizes[b] for b in piece) for piece in pieces),
            holders=tuple(collective.holders[piece[0]] for piece in pieces),
            needers=tuple(collective.needers[piece[0]] for piece in pieces),
        ),
        members=tuple(pieces),
    )


def _cut(blocks: Sequence[int], sizes: Sequence[int], part_bytes: float) -> list[tuple[int, ...]]:
    """Cut a run of blocks where the sum of their bytes passes multiples of `part_bytes`."""
    runs: dict[int, list[int]] = {}
    before = 0
    for b in blocks:
        middle = before + sizes[b] / 2
        runs.setdefault(int(middle / part_bytes) if part_bytes else 0, []).append(b)
        before += sizes[b]
    return [tuple(run) for run in runs.values()]
