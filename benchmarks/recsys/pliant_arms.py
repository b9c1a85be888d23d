"""Pliant's tables as an arm has them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pliant.comm import Comm, RecordedComm
from pliant.recsys.embedding.module import ShardedEmbeddingBag
from pliant.recsys.frequencies.rows import Frequencies
from pliant.spec import EmbeddingPlan
from pliant_bench.clicks.batch import ClickBatch


def hot_of(plan: EmbeddingPlan, frequencies: Frequencies) -> dict[str, Tensor]:
    """Return the ids of the rows that a plan has on all ranks as well: the most frequent."""
    return {
        table.name: torch.from_numpy(rows.head_ids[: layout.num_hot].copy())
        for table, layout, rows in zip(plan.tables, plan.layouts, frequencies.tables, strict=True)
        if layout.num_hot
    }


class PliantBags:
    """A ShardedEmbeddingBag whose bytes are counted.

    Args:
        plan: Layouts.
        comm: Between all ranks.
        hot: Name of a table -> its hot rows.
        weights: Table, first and last column -> its rows, (num_rows, columns).
        lr: Learning rate of rows.
        eps: Of the row optimizer.
        ahead: Whether the next batch's exchange begins beside the dense part of this one.

    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        comm: Comm,
        hot: Mapping[str, Tensor],
        weights: Callable[[int, int, int], Tensor],
        *,
        lr: float,
        eps: float,
        ahead: bool = False,
    ) -> None:
        self.recorded = RecordedComm(comm)
        dims = [table.dim for table in plan.tables]
        rows = [weights(t, 0, dim) for t, dim in enumerate(dims)]
        self.module = ShardedEmbeddingBag(plan, self.recorded, lr=lr, weights=rows, hot=hot, eps=eps)
        self._ahead = ahead

    def input_of(self, batch: ClickBatch) -> Sequence[Any]:
        """Return ids and offsets, table by table."""
        return list(zip(batch.ids, batch.offsets, strict=True))

    def __call__(self, ids: Sequence[Any], following: Sequence[Any] | None) -> list[Tensor]:
        """Return a (batch, dim) for each table; those of `following` are asked for where ids travel ahead."""
        found = self.module(ids)
        if self._ahead and following is not None:
            self.module.prefetch(following)
        return found

    def step(self) -> None:
        """Update rows."""
        self.module.step()
