"""Sums of rows in a fixed order: forward over bags, backward over ids that are alike."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pliant.codecs.kernels import kernels_for
from pliant.recsys.bags import BagRun, Batch

__all__ = ["Room", "Segments", "apart", "mean_divisors", "pool", "segments", "sum_rows"]


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
        room: "Room | None" = None,
    ) -> Tensor:
        """Return float32 (segments, dim): for each segment the sum, in order, of the vectors of its members.

        Args:
            vectors: float32 (num vectors, dim).
            lengths: How many members each vector has, one vector's after another's, int64; None: one each.
            weights: Of members, float32 (members,).
            room: Where the sums are; None: in memory of their own.

        """
        size = len(self.keys), vectors.shape[1]
        sums = vectors.new_zeros(size) if room is None else room.zeros(*size)
        kernels_for(sums).add_rows(sums, self.index, vectors, lengths, weights)
        return sums


class Room:
    """Memory that is used again and again: fresh pages would take longer than the sums in them."""

    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.empty(0, device=device)

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


def apart(keys: Tensor, owners: Tensor) -> Segments:
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


def pool(rows: Tensor, index: Tensor, batch: Batch, runs: list[BagRun], *, mean: bool = True) -> Tensor:
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


def mean_divisors(batch: Batch, runs: list[BagRun]) -> Tensor | None:
    """Return what sums of bags are divided by, float32 (num_bags, 1): one, or their length for the mean; None: ones."""
    if not any(run.mean for run in runs):
        return None
    divisors = torch.ones(batch.num_bags, 1, device=batch.ids.device)
    for run in runs:
        if run.mean:
            divisors[run.bags, 0] = batch.lengths[run.bags].clamp(min=1).float()
    return divisors
