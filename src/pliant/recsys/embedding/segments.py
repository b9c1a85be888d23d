"""Sums of rows in a fixed order: forward over bags, backward over ids that are alike."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pliant.codecs.kernels import kernels_for
from pliant.recsys.embedding.bags import BagBatch, BagRun

__all__ = ["ScratchBuffer", "Segments", "divide_means", "pool", "segments", "sum_rows", "unit_segments"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Members with equal keys.

    Attributes:
        keys: Distinct ones, int64 (segments,).
        index: The segment of each member, int32 (members,).

    """

    keys: Tensor
    index: Tensor

    def sum(
        self,
        vectors: Tensor,
        lengths: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        scratch: "ScratchBuffer | None" = None,
    ) -> Tensor:
        """Return float32 (segments, dim): for each segment the sum, in order, of the vectors of its members.

        Args:
            vectors: float32 (num vectors, dim).
            lengths: How many members each vector has, one vector's after another's, int64; None: one each.
            weights: Of members, float32 (members,).
            scratch: Where the sums are; None: in memory of their own.

        """
        size = len(self.keys), vectors.shape[1]
        sums = vectors.new_zeros(size) if scratch is None else scratch.zeros(*size)
        kernels_for(sums).add_rows(sums, self.index, vectors, lengths, weights)
        return sums


class ScratchBuffer:
    """Memory that is used again and again: fresh pages would take longer than the sums in them."""

    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.empty(0, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self._numbers.nbytes

    def zeros(self, num: int, dim: int) -> Tensor:
        """Return float32 (num, dim) of zeros, in the place of what was returned before."""
        if len(self._numbers) < num * dim:
            self._numbers = self._numbers.new_empty(num * dim)
        return self._numbers[: num * dim].view(num, dim).zero_()


def segments(keys: Tensor, *, ascending: bool = True) -> Segments:
    """Find which keys, int64 (num,), are equal; the distinct ones ascending, or, which is faster, in any order."""
    distinct, index = kernels_for(keys).distinct_keys(keys, ascending=ascending)
    return Segments(keys=distinct, index=index)


def unit_segments(keys: Tensor, owners: Tensor) -> Segments:
    """Return each key, int64 (num,), as a segment of its own, by owner, (num,), and otherwise in their order."""
    order = torch.sort(owners, stable=True)[1]
    index = torch.empty_like(order, dtype=torch.int32)
    index[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return Segments(keys=keys[order], index=index)


def sum_rows(
    rows: Tensor, index: Tensor, starts: Tensor, weights: Tensor | None = None, *, mean: bool = False
) -> Tensor:
    """Return float32 (bags, dim): for each bag, beginning at `starts` (bags,), the sum of rows[index], in order."""
    if len(starts) == 0 or len(index) == 0 or len(rows) == 0:
        return rows.new_zeros(len(starts), rows.shape[1])
    return functional.embedding_bag(
        index, rows, starts.to(index.dtype), mode="mean" if mean else "sum", per_sample_weights=weights
    )


def pool(rows: Tensor, index: Tensor, batch: BagBatch, runs: list[BagRun]) -> Tensor:
    """Pool rows, float32 (num rows, dim), by bags: member k of the batch has row index[k]; returns (num_bags, dim)."""
    starts = batch.starts()
    pooled = [
        sum_rows(
            rows,
            index[run.ids],
            starts[run.bags] - run.ids.start,
            batch.weights[run.ids] if run.weighted and batch.weights is not None else None,
            mean=run.mean,
        )
        for run in runs
    ]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled)


def divide_means(bags: Tensor, batch: BagBatch, runs: list[BagRun]) -> Tensor:
    """Return bags, float32 (num_bags, dim), divided by their lengths where the mean is wanted."""
    if not any(run.mean for run in runs):
        return bags
    divisors = torch.ones(batch.num_bags, 1, dtype=torch.float32, device=batch.ids.device)
    for run in runs:
        if run.mean:
            divisors[run.bags, 0] = batch.lengths[run.bags].clamp(min=1).float()
    return bags / divisors
