"""Holdings of a rank: its shards, the replicas that all have, and which rows are hot."""

from dataclasses import dataclass

import torch

from pliant.recsys.groups import Group, Local, groups_of, locals_of, replica_spans
from pliant.recsys.hot import HotRows
from pliant.recsys.initial import Source, fill
from pliant.recsys.replicas import Replicas
from pliant.recsys.shard import Shard
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["TableShards", "hold"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TableShards:
    """Parts of the tables that a rank has."""

    groups: list[Group]
    shards: list[Shard]
    """Of each group."""
    locals: list[Local]
    replicas: dict[int, Replicas]
    """By dim."""
    hot: list[HotRows]
    """Of the groups that may have hot rows."""
    device: torch.device

    def refresh_owners(self) -> None:
        """Copy the rows that are on all ranks to where their owners have them."""
        for its in self.hot:
            its.refresh_owner()

    def nbytes(self) -> dict[str, int]:
        """Return what is held, in bytes, by part."""
        replicas = self.replicas.values()
        return {
            "weights": sum(shard.rows.weights.nbytes for shard in self.shards),
            "optimizer": sum(shard.rows.state_nbytes for shard in self.shards),
            "replicas": sum(its.rows.nbytes for its in replicas),
            "replicas' gradients": sum(its.gradients.nbytes + its.touched.nbytes for its in replicas),
            "places of hot rows": sum(its.nbytes for its in self.hot),
            "gradients that wait": sum(shard.waiting_nbytes for shard in self.shards),
            "sums of gradients": sum(shard.room_nbytes for shard in self.shards),
        }


def hold(plan: EmbeddingPlan, rank: int, source: Source, device: torch.device) -> TableShards:
    """Return this rank's part of a plan's tables, with their first values; no row is hot yet."""
    groups, spans = groups_of(plan, device), replica_spans(plan)
    shards = [Shard(group, rank, plan.optimizer, device) for group in groups]
    replicas = {dim: Replicas(its, dim, plan.optimizer, device) for dim, its in spans.items()}
    for shard in shards:
        fill(shard.rows, shard.spans, source)
    for its in replicas.values():
        fill(its.rows, [span for span in its.spans if span.piece.layout.kind == "replicated"], source)
    hot = [
        HotRows(group, shard, replicas[group.dim], rank)
        for group, shard in zip(groups, shards, strict=True)
        if any(piece.layout.num_hot for piece in group.pieces)
    ]
    return TableShards(
        groups=groups, shards=shards, locals=locals_of(plan, spans, device), replicas=replicas, hot=hot, device=device
    )
