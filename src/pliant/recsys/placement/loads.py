"""Loads that pieces of tables put on ranks, and what alike pieces share: linear in what is asked of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.layouts.embedding_messages import request_bytes, vector_bytes
from pliant.recsys.placement.traffic import COUNTS, STAGES
from pliant.spec import EmbeddingPlan
from pliant.spec.embedding import Piece

__all__ = [
    "PieceKinds",
    "PieceLoad",
    "Shared",
    "asked_by_group",
    "group_counts",
    "num_lookups",
    "num_on_all",
    "shared_by",
]

Floats = npt.NDArray[np.float64]

_PASSES = {32: 0.0, 16: 1.0, 8: 5.0}
"""By bits of a number on the wire: to bfloat16 in one; scales, factors, rounding, limits and integers for 8 bits."""

Shared = tuple[Any, ...]
"""What alike pieces share: ('group', dim, moves, bits, distinct, weighted), one lookup and one part of each message;
('hot', ...), the lookup of its rows on all ranks; ('here', dim), of replicated tables; ('sum', dim), all-reduces."""


@dataclass(frozen=True, eq=False)
class PieceKinds:
    """Properties on which the cost of a piece depends, for many pieces (m,)."""

    dim: Floats
    vector_bytes: Floats
    is_sums: Floats
    """1 where owners pool, else 0."""
    id_bytes: Floats
    """Of an id in a request, with its weight."""
    coded: Floats
    """Passes over the numbers of a vector to encode or decode it."""

    @classmethod
    def of(cls, plan: EmbeddingPlan, pieces: Sequence[Piece]) -> "PieceKinds":
        """Describe pieces of a plan."""
        rows = [
            (
                piece.dim,
                vector_bytes(piece.dim, piece.layout.bits),
                piece.layout.moves == "sums",
                request_bytes(1, 0, weighted=piece.layout.moves == "sums" and plan.tables[piece.index].weighted),
                _PASSES[piece.layout.bits],
            )
            for piece in pieces
        ]
        return cls(*np.array(rows, np.float64).reshape(-1, 5).T)


@dataclass(frozen=True, eq=False)
class PieceLoad:
    """Load that each of some pieces, or all of them together, put on ranks: linear in what they are asked.

    Requesters are all ranks, or one that stands for all of them where all are expected to ask alike.
    """

    pairs: Floats
    """(8, pieces, requesters, ranks), without pieces in a total; of an owner for a requester, itself included: bytes of
    requests; bytes of vectors; rows gathered; numbers pooled there; numbers of partial sums; passes over numbers coded;
    numbers of gradients added there; ids made distinct there."""
    asks: Floats
    """(3, pieces, requesters): ids made distinct; numbers added when pooling, and again for gradients; gathered rows on
    all ranks."""
    updated: Floats
    """(pieces, ranks): numbers of rows that owners update."""

    @classmethod
    def of(
        cls,
        kinds: PieceKinds,
        ids: Floats,
        vectors: Floats,
        bags: Floats,
        lookups: Floats,
        warm: Floats,
        updated: Floats,
    ) -> "PieceLoad":
        """Return the loads of pieces.

        Args:
            kinds: Of m pieces.
            ids: (m, requesters, ranks) that owners are asked for.
            vectors: (m, requesters, ranks) that they answer with.
            bags: (m, requesters, ranks) of those ids; counted only where owners pool.
            lookups: (m, requesters), ids of all bags.
            warm: (m, requesters), those of rows on all ranks.
            updated: (m, ranks), rows that an owner updates.

        """
        wide = [getattr(kinds, name)[:, None, None] for name in PieceKinds.__dataclass_fields__]
        dim, vector, sums, id_bytes, coded = wide  # (m, 1, 1)
        at_owner, own = sums * dim * ids, (1 - sums) * dim * vectors
        pairs = [
            id_bytes * ids + request_bytes(0, 1, weighted=False) * sums * bags,
            vector * vectors,
            np.where(sums > 0, ids, vectors),
            at_owner,
            sums * dim * vectors,
            coded * dim * vectors,
            at_owner + own,
            sums * ids,
        ]
        here = np.where(kinds.is_sums[:, None] > 0, warm, lookups)
        return cls(np.stack(pairs), np.stack([here, kinds.dim[:, None] * here, warm]), kinds.dim[:, None] * updated)

    def total(self) -> "PieceLoad":
        """Return the sum over all pieces."""
        return PieceLoad(self.pairs.sum(axis=1), self.asks.sum(axis=1), self.updated.sum(axis=0))

    def work(self, num_pieces: int, synced: Floats | float) -> Floats:
        """Return counts (stages, counts, ..., ranks) of all ranks, with so many numbers of rows on all ranks summed."""
        num_ranks = self.updated.shape[-1]
        pairs = np.broadcast_to(self.pairs, (*self.pairs.shape[:-2], num_ranks, num_ranks))
        asks = np.broadcast_to(self.asks, (*self.asks.shape[:-1], num_ranks))
        coded = pairs[5] * (1 - np.eye(num_ranks))
        found = np.zeros((len(STAGES), len(COUNTS), *self.updated.shape))
        prepare, serve, pool, back, update, sync = found
        prepare[0], prepare[5] = asks[0], num_pieces
        serve[1], serve[2], serve[3] = pairs[2].sum(axis=-2), pairs[3].sum(axis=-2), coded.sum(axis=-2)
        pool[1], pool[2], pool[3] = asks[2], asks[1] + pairs[4].sum(axis=-1), coded.sum(axis=-1)
        back[2], back[3] = asks[1], coded.sum(axis=-1)
        update[0], update[2] = pairs[7].sum(axis=-2), pairs[6].sum(axis=-2)
        update[3], update[4] = coded.sum(axis=-2), self.updated
        sync[2] = sync[4] = synced
        return found


def num_on_all(plan: EmbeddingPlan, piece: Piece) -> int:
    """Return how many rows of a piece are on all ranks: hot ones, or those of a replicated table."""
    return plan.tables[piece.index].num_rows if piece.layout.kind == "replicated" else piece.layout.num_hot


def shared_by(plan: EmbeddingPlan, pieces: Sequence[Piece]) -> set[Shared]:
    """Return what alike pieces of a plan share, each once."""
    found: set[Shared] = set()
    for piece in pieces:
        if piece.layout.kind == "replicated":
            found |= {("here", piece.dim), ("sum", piece.dim)}
            continue
        key = plan.alike(piece)
        found.add(("group", *key))
        if piece.layout.num_hot:
            found |= {("hot", *key), ("sum", piece.dim)}
    return found


def asked_by_group(plan: EmbeddingPlan, pieces: Sequence[Piece], vectors: Floats) -> Floats:
    """Return (groups, ...) of vectors (m, ...) that are asked for, of the groups where vectors move."""
    keys = [plan.alike(piece) if piece.layout.moves == "vectors" else None for piece in pieces]
    groups = sorted({key for key in keys if key is not None})
    sums = [vectors[[key == group for key in keys]].sum(axis=0) for group in groups]
    return np.stack(sums) if sums else np.zeros((0, *vectors.shape[1:]))


def group_counts(shared: Iterable[Shared]) -> tuple[int, int]:
    """Return how many groups of vectors and of sums there are: pieces that are alike are one."""
    moves = [key[2] for key in shared if key[0] == "group"]
    return moves.count("vectors"), moves.count("sums")


def num_lookups(shared: Iterable[Shared]) -> int:
    """Return how many times ids are looked up: in each group, its rows on all ranks, and replicated tables of a dim."""
    return sum(key[0] != "sum" for key in shared)
