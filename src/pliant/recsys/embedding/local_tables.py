"""Local parts of the tables: a rank's shards, the replicas that all have, and which rows are hot."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.comm.base import Comm
from pliant.recsys.embedding.channel import PairwiseChannel
from pliant.recsys.embedding.groups import Group, ReplicatedGroup, groups_of, replica_spans, replicated_groups
from pliant.recsys.embedding.hot import HotRows
from pliant.recsys.embedding.initial import Source, fill
from pliant.recsys.embedding.optimizers import RowRule
from pliant.recsys.embedding.replicas import Replicas
from pliant.recsys.embedding.shard import TableShard
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["LocalTables", "build_local_tables"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTables:
    """Parts of the tables that a rank has."""

    groups: list[Group]
    shards: list[TableShard]
    """Of each group."""
    replicated: list[ReplicatedGroup]
    replicas: dict[int, Replicas]
    """By dim."""
    hot: list[HotRows]
    """Of the groups that may have hot rows."""
    device: torch.device

    def apply(self, rule: RowRule, lr: float, divisor: int) -> None:
        """Apply the gradients that have come for rows of this rank's own."""
        for shard in self.shards:
            shard.apply(rule, lr, divisor)

    def synchronize(self, comm: Comm, rule: RowRule, lr: float, divisor: int) -> None:
        """Sum the gradients of rows on all ranks, and apply them. Collective, in the order of dims."""
        for dim in sorted(self.replicas):
            self.replicas[dim].synchronize(comm, rule, lr, divisor)

    def change_hot(self, ids: Mapping[int, Tensor], channel: PairwiseChannel) -> None:
        """Make these rows the hot ones, by index of table. Collective."""
        for its in self.hot:
            its.change(ids, channel)

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
            "sums of gradients": sum(shard.scratch_nbytes for shard in self.shards),
        }


def build_local_tables(plan: EmbeddingPlan, rank: int, source: Source, device: torch.device) -> LocalTables:
    """Return this rank's part of a plan's tables, with their first values; no row is hot yet."""
    groups, spans = groups_of(plan, device), replica_spans(plan)
    shards = [TableShard(group, rank, plan.optimizer, device) for group in groups]
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
    return LocalTables(
        groups=groups,
        shards=shards,
        replicated=replicated_groups(plan, spans, device),
        replicas=replicas,
        hot=hot,
        device=device,
    )
