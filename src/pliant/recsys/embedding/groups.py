"""Pieces of tables that are alike share one tensor on each rank, one sort and one part of each message."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.recsys.embedding.bags import BagBatch
from pliant.spec.embedding import EmbeddingPlan, Piece, Table

__all__ = ["Group", "PieceSpan", "ReplicatedGroup", "groups_of", "replica_spans", "replicated_groups"]


@dataclass(frozen=True, kw_only=True)
class PieceSpan:
    """Rows of a piece that follow each other in a tensor of a rank."""

    piece: Piece
    slot: int
    """Of the first."""
    first: int
    """The row of the table that is there."""
    stride: int
    """From one row to the next."""
    num: int

    def rows(self, device: torch.device) -> Tensor:
        """Return their ids, int64 (num,)."""
        return torch.arange(self.num, device=device) * self.stride + self.first


class Group:
    """Alike pieces that are sharded: their key, of a row, is owner * stride + slot.

    Keys of rows that are on all ranks as well are in `hot_keys`, ascending, (num_hot,); their places among the replicas
    in `hot_slots`.
    """

    def __init__(self, plan: EmbeddingPlan, pieces: Sequence[Piece], device: torch.device) -> None:
        n = plan.num_ranks
        self.pieces = tuple(sorted(pieces, key=lambda p: _pooling(plan.tables[p.index])))
        self.indices = [piece.index for piece in self.pieces]
        self.tables = [plan.tables[index] for index in self.indices]
        layout = self.pieces[0].layout
        self.dim, self.bits, self.distinct = self.pieces[0].dim, layout.bits, layout.distinct
        self.pools = layout.moves == "sums"
        self.weighted = self.pools and self.tables[0].weighted
        self.num_ranks = n
        self.whole = all(piece.home is not None for piece in self.pieces)
        """Whether a bag is never pooled by two owners."""
        owned = [[plan.num_owned(piece, rank) for rank in range(n)] for piece in self.pieces]  # (pieces, ranks)
        self._base = [[sum(row[r] for row in owned[:k]) for r in range(n)] for k in range(len(owned))]
        self.num_slots = [sum(row[rank] for row in owned) for rank in range(n)]
        self.stride = max(self.num_slots)
        if self.stride > torch.iinfo(torch.int32).max:
            raise ValueError(
                f"a rank would own {self.stride} rows of dim {self.dim}, but slots travel as int32; use more ranks."
            )
        self._owned = owned
        homes = [piece.home for piece in self.pieces]
        self._modulus = torch.tensor([n if home is None else 1 for home in homes], device=device)
        self._shift = torch.tensor([p.index % n if p.home is None else 0 for p in self.pieces], device=device)
        first = [[self._first_key(k, r if home is None else home) for r in range(n)] for k, home in enumerate(homes)]
        self._first = torch.tensor(first, device=device).view(-1)  # (pieces * num_ranks,)
        self._at_home = self._first[::n]  # (pieces,), where a piece has one
        self.hot_keys = self.hot_slots = torch.zeros(0, dtype=torch.int64, device=device)

    def _first_key(self, k: int, owner: int) -> int:
        return owner * self.stride + self._base[k][owner]

    def keys(self, batch: BagBatch) -> Tensor:
        """Return the key of each id, int64 (num_ids,), of a batch of this group's tables."""
        if self.whole:
            return batch.repeat(self._at_home).add_(batch.ids)
        modulus, shift = batch.repeat(self._modulus), batch.repeat(self._shift)
        piece = batch.repeat(torch.arange(len(self.pieces), device=batch.ids.device) * self.num_ranks)
        return self._first[piece + (batch.ids + shift) % modulus] + batch.ids // modulus

    def keys_of(self, k: int, ids: Tensor) -> Tensor:
        """Return the keys of ids, int64 (num,), of the k-th piece."""
        owner = (ids + self._shift[k]) % self._modulus[k]
        return self._first[k * self.num_ranks + owner] + ids // self._modulus[k]

    def find_hot(self, keys: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return which keys, (num,), are of hot rows, and the slots of these among the replicas; None: no key is."""
        if len(self.hot_keys) == 0 or len(keys) == 0:
            return None
        at = torch.searchsorted(self.hot_keys, keys).clamp_(max=len(self.hot_keys) - 1)
        hot = self.hot_keys[at] == keys
        return (hot, self.hot_slots[at[hot]]) if bool(hot.any()) else None

    def spans(self, rank: int) -> list[PieceSpan]:
        """Return what lies where in the tensor of a rank."""
        found = []
        for k, piece in enumerate(self.pieces):
            first = 0 if piece.home is not None else (rank - piece.index) % self.num_ranks
            stride = 1 if piece.home is not None else self.num_ranks
            slot, num = self._base[k][rank], self._owned[k][rank]
            found.append(PieceSpan(piece=piece, slot=slot, first=first, stride=stride, num=num))
        return found


class ReplicatedGroup:
    """Replicated tables of one dim: nothing is asked for; a row is its slot among the replicas."""

    def __init__(self, plan: EmbeddingPlan, spans: Sequence[PieceSpan], device: torch.device) -> None:
        spans = sorted(spans, key=lambda s: _pooling(plan.tables[s.piece.index]))
        self.pieces = tuple(span.piece for span in spans)
        self.indices = [piece.index for piece in self.pieces]
        self.tables = [plan.tables[index] for index in self.indices]
        self.dim = self.pieces[0].dim
        self._first = torch.tensor([span.slot for span in spans], device=device)

    def slots(self, batch: BagBatch) -> Tensor:
        """Return the slot of each id, int64 (num_ids,), of a batch of these tables."""
        return batch.ids + batch.repeat(self._first)


def _pooling(table: Table) -> tuple[bool, bool]:
    """Order tables so that those which are pooled alike are side by side."""
    return table.pooling == "mean", table.weighted


def groups_of(plan: EmbeddingPlan, device: torch.device) -> list[Group]:
    """Return the groups of a plan's sharded pieces, in an order that is the same on all ranks."""
    alike: dict[tuple[int, str, int, bool, bool], list[Piece]] = {}
    for piece in plan.pieces():
        if piece.layout.kind != "replicated":
            alike.setdefault(plan.alike(piece), []).append(piece)
    return [Group(plan, alike[key], device) for key in sorted(alike)]


def replica_spans(plan: EmbeddingPlan) -> dict[int, list[PieceSpan]]:
    """Return for each dim where rows that are on all ranks lie: a whole table, or room for the hot rows of one."""
    found: dict[int, list[PieceSpan]] = {}
    for piece in plan.pieces():
        whole = piece.layout.kind == "replicated"
        num = plan.tables[piece.index].num_rows if whole else piece.layout.num_hot
        if num:
            its = found.setdefault(piece.dim, [])
            slot = its[-1].slot + its[-1].num if its else 0
            its.append(PieceSpan(piece=piece, slot=slot, first=0, stride=1, num=num))
    return found


def replicated_groups(
    plan: EmbeddingPlan, spans: dict[int, list[PieceSpan]], device: torch.device
) -> list[ReplicatedGroup]:
    """Return the replicated tables, grouped by dim."""
    whole = [[s for s in spans[dim] if s.piece.layout.kind == "replicated"] for dim in sorted(spans)]
    return [ReplicatedGroup(plan, its, device) for its in whole if its]
