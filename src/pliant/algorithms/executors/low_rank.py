"""Gradients as products of two thin matrices."""

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.ratio_state import check_single_momentum
from pliant.algorithms.inputs import ranks_of
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

    With a momentum mu, what was sent stays in what is kept, mu times, so that M is a momentum that no rank sends whole.
    It is Dion's exchange (Ahn et al., arXiv:2504.05295, Algorithm 3; Q has columns of length 1 there, which changes no
    P):

        M_i <- M_i + g_i;   P, Q as above;   M_i <- M_i - (1 - mu) P Q^T;   the optimizer makes P Q^T orthogonal

    P and Q are kept as rows, (r, n) and (r, m).
    Bytes: two averages a bucket, of sum (n r + all uncompressed) and sum (m r) float32.
    """

    node: LowRank

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A residual or a momentum, and the right factor Q where the parameter is worth compressing."""
        factor = factor_shape(shape, self.node.rank)
        return {self._kept: None} if factor is None else {self._kept: None, "q": factor}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the packed buffers of both averages."""
        shapes = {span.name: span.shape for span in bucket.spans}
        carrier = scheduled(comm, self.node.schedule)
        return LowRankAverage(shapes, self.node.rank, carrier, bucket.flat.device, stays=self.node.momentum)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Exchange the factors of each matrix; alone, those of a momentum only."""
        if comm.size > 1 or self.node.momentum:
            state.workspace(bucket.flat, state.flat[self._kept], state.of.get("q", {}))

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a second momentum in the optimizer, and another rank than that of the momentum that comes."""
        check_single_momentum(self.node.momentum, optimizer)
        ranks = ranks_of(optimizer)
        if self.node.momentum and ranks and self.node.rank not in ranks:
            raise ValueError(
                f"the optimizer steps along {' or '.join(map(str, ranks))} directions of a matrix, but this algorithm "
                f"hands over momenta of rank {self.node.rank}: some would get lost, or be rounding; give both one rank."
            )

    @property
    def _kept(self) -> str:
        """Name of the slot: gradients in a momentum have decayed, so that no later plan adds them."""
        return "momentum" if self.node.momentum else "residual"
