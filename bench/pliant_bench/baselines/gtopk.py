"""gTop-k: pairs of ranks merge what they chose, hop by hop, and keep the k largest each time."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import add_residual, count_of
from pliant_bench.baselines.streams import largest

__all__ = ["GTopK", "merge_up"]


@dataclass(frozen=True, kw_only=True)
class GTopK:
    """A tree of merges that keep k, then a broadcast of the k that are left.

    Shi et al., gTop-k (ICDCS'19, arXiv:1901.04359), Algorithms 3 and 4:

        v <- v + g;  I = places of the k largest |v|;  (J, s) = k largest of the sum, merged in a tree
        g <- s / n at J;  v <- 0 at I and J, so that what did not arrive anywhere stays with its ranks

    A merge may drop a rank's part of a place that arrives by another branch: the paper loses it. With ``kept=1`` it
    stays in the residual of the rank that merged, and nothing is lost. Bytes: 8 k for each rank but the root on the way
    up, 8 k (n-1) in all on the way down.
    """

    ratio: float = 0.01
    kept: float = 0

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        return Custom(name="gtopk", settings={"ratio": self.ratio, "kept": self.kept})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Nothing but the count."""
        return count_of(self.ratio, bucket.numel)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Choose, merge up, broadcast, keep the rest."""
        held, finite = add_residual(bucket.flat, state.flat["residual"])
        chosen = largest(held, state.workspace)
        pairs = torch.stack([chosen.to(torch.int32), held[chosen].view(torch.int32)])  # (2, k)
        pairs, dropped = merge_up(pairs, bucket.numel, comm)
        comm.broadcast(pairs, 0).wait()
        places, values = pairs[0].long(), pairs[1].view(torch.float32)
        bucket.flat.zero_()
        bucket.flat[places] = values / comm.size
        if not finite:
            return
        arrived = torch.zeros(bucket.numel, dtype=torch.bool, device=held.device)
        arrived[places] = True
        held[chosen[arrived[chosen]]] = 0
        for lost_at, lost in dropped if self.kept else ():
            there = arrived[lost_at] & lost.isfinite()
            held[lost_at[there]] += lost[there]


def merge_up(pairs: Tensor, numel: int, comm: Comm) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return on rank 0 the merged int32 pairs, (2, k); elsewhere what this rank has passed on; and what it dropped.

    At distance d = 1, 2, 4 ... the odd multiples of d send to the rank d below them, who adds up and keeps k: any
    number of ranks, ceil(log2 n) hops. What was dropped: places, int64, and values, of each of this rank's merges.
    """
    k, dropped, distance = pairs.shape[1], list[tuple[Tensor, Tensor]](), 1
    while distance < comm.size:
        if comm.rank % (2 * distance):
            comm.exchange([(comm.rank - distance, pairs)], []).wait()
            break
        if comm.rank + distance < comm.size:
            other = torch.empty_like(pairs)
            comm.exchange([], [(comm.rank + distance, other)]).wait()
            total = torch.zeros(numel, device=pairs.device)
            for places, values in (pairs, other):
                total[places.long()] += values.view(torch.float32)
            union = torch.cat([pairs[0], other[0]]).unique().long()
            keep = largest(total[union], k)
            left = torch.ones(union.numel(), dtype=torch.bool, device=pairs.device)
            left[keep] = False
            dropped.append((union[left], total[union[left]]))
            pairs = torch.stack([union[keep].to(torch.int32), total[union[keep]].view(torch.int32)])
        distance *= 2
    return pairs, dropped
