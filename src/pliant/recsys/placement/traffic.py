"""Traffic of one step of an embedding plan: bytes and messages of each pair of ranks, work of each rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.spec import Topology

__all__ = ["COUNTS", "PHASES", "STAGES", "Sync", "Traffic", "sync_pairs"]

Floats = npt.NDArray[np.float64]

PHASES = ("sizes", "request", "answer", "gradients")
"""Exchanges between pairs of ranks; all-reduces of rows on all ranks are `Traffic.syncs`."""
STAGES = ("prepare", "serve", "pool", "back", "update", "sync")
"""Work between exchanges: ids are made distinct; owners gather; requesters pool; they sum gradients by row; owners add
them up and update rows; rows on all ranks are updated."""
COUNTS = ("ids", "rows", "numbers", "coded", "updated", "pieces")
"""Ids sorted, rows gathered, numbers added, encoded or decoded, and updated by the optimizer, and pieces of tables."""


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Rows on all ranks of one dim that are synchronized together."""

    dim: int
    num_rows: float
    """All of them: a byte of each travels."""
    num_touched: float
    """By anybody since the last time: their gradients travel."""

    @property
    def message_bytes(self) -> tuple[float, float]:
        """Bytes of its two vectors: each rank sends 2 (n-1)/n of both."""
        return self.num_rows, 4 * self.dim * self.num_touched

    @classmethod
    def by_dim(cls, rows: Iterable[tuple[int, float, float]]) -> "tuple[Sync, ...]":
        """Join (dim, rows on all ranks, touched ones) of tables of one dim, in the order of dims."""
        totals: dict[int, tuple[float, float]] = {}
        for dim, num_rows, num_touched in rows:
            before = totals.get(dim, (0.0, 0.0))
            totals[dim] = (before[0] + num_rows, before[1] + num_touched)
        return tuple(cls(dim=dim, num_rows=n, num_touched=touched) for dim, (n, touched) in sorted(totals.items()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """Traffic and work of one step of a plan."""

    num_bytes: Floats
    """(phases, ranks, ranks): from rank to rank; nothing from a rank to itself."""
    num_messages: Floats
    """(phases, ranks, ranks)"""
    syncs: tuple[Sync, ...]
    """All-reduces, two for each."""
    sync_share: float
    """Of this step: 1 where they take place, 0 where not, 1 / every on average."""
    work: Floats
    """(stages, counts, ranks)"""
    num_lookups: int
    """Of each rank, of its ids in groups of alike pieces."""
    hierarchical: bool

    @property
    def num_ranks(self) -> int:
        """Ranks of the plan."""
        return self.num_bytes.shape[1]

    def sent_bytes(self, topology: Topology | None = None) -> Floats:
        """Return what each rank sends (ranks,); the topology says who is on whose host for hierarchical sums."""
        return self._pair_bytes(topology).sum(axis=1)

    def received_bytes(self, topology: Topology | None = None) -> Floats:
        """Return what each rank receives (ranks,)."""
        return self._pair_bytes(topology).sum(axis=0)

    def _pair_bytes(self, topology: Topology | None) -> Floats:
        """Return the bytes (ranks, ranks) of all phases and all-reduces."""
        pairs, hosts = self.num_bytes.sum(axis=0), None
        if self.hierarchical and self.syncs:
            if topology is None:
                raise ValueError(
                    "the plan sums inside hosts first; give the topology, which says who is on which host."
                )
            hosts = [topology.ranks_of(k) for k in range(len(topology.hosts))]
        for sync in self.syncs:
            for num_bytes in sync.message_bytes:
                pairs = pairs + self.sync_share * sync_pairs(num_bytes, self.num_ranks, hosts)
        return pairs


def sync_pairs(num_bytes: float, num_ranks: int, hosts: Sequence[range] | None = None) -> Floats:
    """Return the bytes (ranks, ranks) of an all-reduce: a ring, or, given hosts, what `HierarchicalComm` does.

    Each rank of a ring of n sends 2 (n-1)/n of the vector, rounded down, to the next. With hosts there is a ring in
    each of them, then one of their first ranks, which broadcast the result to the others.
    """
    pairs = np.zeros((num_ranks, num_ranks))
    rings = [range(num_ranks)] if hosts is None else [*hosts, [ranks[0] for ranks in hosts]]
    whole = float(num_bytes).is_integer()
    for ring in rings:
        moved = 2 * (len(ring) - 1) * num_bytes / len(ring)
        for rank, after in zip(ring, [*ring[1:], *ring[:1]], strict=True):
            if rank != after:
                pairs[rank, after] += moved // 1 if whole else moved
    for first, *others in hosts or ():
        pairs[first, others] += num_bytes
    return pairs
