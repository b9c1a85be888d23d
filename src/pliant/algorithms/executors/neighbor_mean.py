"""Changes of weights averaged with neighbours, and points drawn together, in one message."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.collectives.gossip import NeighborAverage
from pliant.comm.base import Comm
from pliant.spec import NeighborMean

__all__ = ["NeighborMeanExecutor"]


@dataclass(frozen=True)
class NeighborMeanExecutor:
    """Give each rank's outer optimizer its neighbours' mean change, and the way to their mean point.

    Kolehmainen et al., NoLoCo (arXiv:2506.10911), as its authors' code has it (jkolehm/noloco, sparse_optimizer_c.py).
    Rank i set out from theta_i and is at x_i; mean_P is that of the round's pair, and D_i = theta_i - x_i:

        delta_i <- a delta_i - b mean_P(D) - c (theta_i - mean_P(theta));   x_i <- theta_i <- theta_i + delta_i

    With a plain momentum a and a rate b, and with c = b k, LocalSteps does the same with this in place of D:

        mean_P(D) + k (theta_i - mean_P(theta)) = k theta_i + mean_P(D - k theta)

    So one vector travels, where the authors send two; they have k = 1, with which it is -x. Pulls cancel in each pair,
    and the mean over all ranks moves as with DiLoCo. In a round without a partner, the change is the rank's own.
    Bytes per exchange: 4 N to each neighbour and from each. Memory: a buffer of N; theta_i and m are of `LocalSteps`,
    which gives theta_i as the slot ``anchor``.
    """

    node: NeighborMean

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Keep nothing between two exchanges."""
        return {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the buffers for neighbours' vectors."""
        graph, device = self.node.graph, bucket.flat.device
        return NeighborAverage(graph, bucket.numel, comm, dtype=bucket.flat.dtype, device=device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Average once with the neighbours of the round."""
        change, theta, k = bucket.flat, state.flat["anchor"], self.node.pull
        change.sub_(theta, alpha=k)
        state.workspace(change, context.round)
        change.add_(theta, alpha=k)
