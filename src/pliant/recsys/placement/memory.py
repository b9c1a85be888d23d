"""Memory of a rank: rows with what the optimizer keeps, replicas, and the messages of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.bins import RowBins
from pliant.recsys.frequencies.rows import Frequencies
from pliant.recsys.placement.expected_traffic import ExpectedLookups, expected_lookups
from pliant.recsys.placement.loads import PieceKinds, num_on_all
from pliant.spec import EmbeddingPlan
from pliant.spec.embedding import Piece

__all__ = ["Memory", "held_by_piece", "memory_per_rank"]

Floats = npt.NDArray[np.float64]

_MARGIN = 1.25
"""Batches differ: what messages take over what they are expected to take."""
_ID_BYTES = 24
"""Of a lookup while ids are made distinct: the key, where it came from, and its place among the distinct ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """Bytes of each rank (ranks,), at the busiest moment of a step or of a change of the hot set."""

    shards: Floats
    """Rows that the rank owns, with what the optimizer keeps of them. Hot rows keep their place there."""
    replicas: Floats
    """Rows on all ranks, with what the optimizer keeps, their gradients, and their ids."""
    messages: Floats
    """Ids, vectors and gradients of a step, sent and received, and the pooled bags."""
    change: Floats
    """A second set of replicas, while the hot rows change."""

    @property
    def total(self) -> Floats:
        """Bytes of each rank (ranks,)."""
        return self.shards + self.replicas + np.maximum(self.messages, self.change)


def memory_per_rank(plan: EmbeddingPlan, frequencies: Frequencies | RowBins) -> Memory:
    """Return what each rank holds under a plan."""
    bins = frequencies if isinstance(frequencies, RowBins) else RowBins.of(plan.tables, frequencies)
    pieces = plan.pieces()
    parts = held_by_piece(plan, pieces, expected_lookups(plan, pieces, bins)).sum(axis=0)  # (4, ranks)
    return Memory(shards=parts[0], replicas=parts[1], messages=parts[2], change=parts[3])


def held_by_piece(plan: EmbeddingPlan, pieces: Sequence[Piece], found: ExpectedLookups) -> Floats:
    """Return bytes (m, 4, ranks) of shards, replicas, messages and changes, for each of some pieces."""
    n = plan.num_ranks
    kinds = PieceKinds.of(plan, pieces)
    row = np.array([plan.row_bytes(piece) for piece in pieces], np.float64)
    num_hot = np.array([num_on_all(plan, piece) for piece in pieces], np.float64)
    changes = np.array([piece.layout.kind == "rows" for piece in pieces])
    shards = _owned(plan, pieces) * row[:, None]
    replicas = num_hot * (row + 4 * kinds.dim + 1 + 8)
    request = found.ids * kinds.id_bytes[:, None] + 4 * kinds.is_sums[:, None] * found.bags
    vector, plain = kinds.vector_bytes[:, None], 4 * kinds.dim[:, None]
    asks = _ID_BYTES * found.lookups + (request + found.vectors * (2 * vector + 2 * plain)).sum(axis=1)
    serves = (n - 1) * (request + 2 * found.vectors * vector) + found.updated * plain
    pooled = 8 * kinds.dim * np.array(plan.num_bags)[[piece.index for piece in pieces]]  # bags and their gradients
    messages = _MARGIN * (asks[:, None] + serves) + pooled[:, None]
    of_all = np.stack([replicas, np.where(changes, num_hot * (row + 8), 0.0)])[:, :, None] * np.ones(n)
    return np.stack([shards, of_all[0], messages, of_all[1]], axis=1)


def _owned(plan: EmbeddingPlan, pieces: Sequence[Piece]) -> Floats:
    """Return rows (m, ranks) that ranks own: `EmbeddingPlan.num_owned` of all pieces and ranks at once."""
    index = np.array([piece.index for piece in pieces])[:, None]
    num_rows = np.array([plan.tables[piece.index].num_rows for piece in pieces])[:, None]
    home = np.array([-1 if piece.home is None else piece.home for piece in pieces])[:, None]
    on_all = np.array([piece.layout.kind == "replicated" for piece in pieces])[:, None]
    ranks = np.arange(plan.num_ranks)
    spread = np.maximum(0, -((-num_rows + (ranks - index) % plan.num_ranks) // plan.num_ranks))
    owned = np.where(home >= 0, np.where(ranks == home, num_rows, 0), spread)
    return np.where(on_all, 0, owned).astype(np.float64)
