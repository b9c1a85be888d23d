"""Sums of rows in a fixed order: forward over bags, backward over ids that are alike."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pliant.recsys.bags import Batch, Run

__all__ = ["Segments", "in_order", "mean_divisors", "pool", "segments", "sum_rows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Equal keys, side by side.

    Attributes:
        keys: Distinct ones, ascending, int64 (segments,).
        order: Of all, such that equal ones are side by side and keep their order, int64 (num,).
        starts: Of each segment in that order, int64 (segments,).

    """

    keys: Tensor
    order: Tensor
    starts: Tensor

    def inverse(self) -> Tensor:
        """Return the segment of each key, int64 (num,)."""
        steps = torch.zeros_like(self.order)
        steps[self.starts[1:]] = 1
        return torch.empty_like(self.order).scatter_(0, self.order, steps.cumsum(0))

    def apart(self, keys: Tensor) -> "Segments":
        """Return these keys, (num,), in this order, each as a segment of its own."""
        return Segments(keys=keys[self.order], order=self.order, starts=torch.arange(len(keys), device=keys.device))

    def sum(self, vectors: Tensor, index: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Return float32 (segments, dim): for each segment the sum, in order, of the vectors of its members.

        Args:
            vectors: float32 (num vectors, dim).
            index: Which vector each member has, (num,); None: one each.
            weights: Its factor, float32 (num,).

        """
        order = self.order if index is None else index[self.order]
        return sum_rows(vectors, order, self.starts, None if weights is None else weights[self.order])


def segments(keys: Tensor) -> Segments:
    """Bring equal keys, int64 (num,), side by side."""
    return _cut(*torch.sort(keys, stable=True))


def in_order(keys: Tensor) -> Segments:
    """Return the segments of keys, int64 (num,), that are ascending already."""
    return _cut(keys, torch.arange(len(keys), device=keys.device))


def _cut(ordered: Tensor, order: Tensor) -> Segments:
    if len(ordered) == 0:
        return Segments(keys=ordered, order=order, starts=order)
    new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    starts = new.nonzero().view(-1)
    return Segments(keys=ordered[starts], order=order, starts=starts)


def sum_rows(
    rows: Tensor, index: Tensor, starts: Tensor, weights: Tensor | None = None, *, mean: bool = False
) -> Tensor:
    """Return float32 (bags, dim): for each bag, beginning at `starts` (bags,), the sum of rows[index], in order."""
    if len(starts) == 0 or len(index) == 0 or len(rows) == 0:
        return rows.new_zeros(len(starts), rows.shape[1])
    return functional.embedding_bag(
        index, rows, starts.to(index.dtype), mode="mean" if mean else "sum", per_sample_weights=weights
    )


def pool(rows: Tensor, index: Tensor, batch: Batch, runs: list[Run], *, mean: bool = True) -> Tensor:
    """Pool rows, float32 (num rows, dim), by bags: member k of the batch has row index[k]; returns (num_bags, dim).

    With `mean` False, sums are returned also where the mean is wanted.
    """
    starts = batch.starts()
    pooled = [
        sum_rows(
            rows,
            index[run.ids],
            starts[run.bags] - run.ids.start,
            batch.weights[run.ids] if run.weighted and batch.weights is not None else None,
            mean=run.mean and mean,
        )
        for run in runs
    ]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled)


def mean_divisors(batch: Batch, runs: list[Run]) -> Tensor | None:
    """Return what sums of bags are divided by, float32 (num_bags, 1): one, or their length for the mean; None: ones."""
    if not any(run.mean for run in runs):
        return None
    divisors = torch.ones(batch.num_bags, 1, device=batch.ids.device)
    for run in runs:
        if run.mean:
            divisors[run.bags, 0] = batch.lengths[run.bags].clamp(min=1).float()
    return divisors
