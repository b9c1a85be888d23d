"""Gradients as products of two thin matrices."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.collectives.lowrank import LowRankAverage
from pliant.comm.base import Comm
from pliant.layouts.division import factor_shape
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import LowRank

__all__ = ["LowRankExecutor"]


@dataclass(frozen=True)
class LowRankExecutor:
    """One step of subspace iteration per training step, warm-started, with error feedback.

    Vogels et al., PowerSGD (arXiv:1905.13727), Algorithms 1 and 2, per parameter M of n x m elements:

        P <- mean over ranks of M Q;  orthogonalize P;  Q <- mean over ranks of M^T P;  M' = P Q^T

    P and Q are kept as rows, (r, n) and (r, m).
    Bytes: two averages a bucket, of sum (n r + all uncompressed) and sum (m r) float32.
    """

    node: LowRank

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A residual, and the right factor Q where the parameter is worth compressing."""
        factor = factor_shape(shape, self.node.rank)
        return {"residual": None} if factor is None else {"residual": None, "q": factor}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the packed buffers of both averages."""
        shapes = {span.name: span.shape for span in bucket.spans}
        return LowRankAverage(shapes, self.node.rank, scheduled(comm, self.node.schedule), bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Exchange the factors of each matrix."""
        state.workspace(bucket.flat, state.flat["residual"], state.of.get("q", {}))
