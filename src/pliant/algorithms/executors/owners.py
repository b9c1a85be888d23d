"""Owners of parts, which hold their optimizer state and step them: ZeRO stage 1 and parameter servers."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.owner_ways import owner_ways
from pliant.buckets import Bucket
from pliant.codecs import codec_from
from pliant.collectives.owner import ReduceToOwners
from pliant.comm.base import Comm
from pliant.spec import ParameterServer, ShardedOptimizer

__all__ = ["OwnerExecutor"]


@dataclass(frozen=True)
class OwnerExecutor:
    """Gradients go to the owners of their parts, which step them and send the new weights to all.

    In lockstep, of a part p with owner o(p), on n ranks (Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1; Li et
    al., parameter server, OSDI 2014):

        at o(p):  g <- (1/n) sum_i g_i;  x_p <- optimizer(x_p, g);  everywhere:  x_p <- x_p of o(p)

    This is an all-reduce and the plain optimizer, up to rounding. Bytes are the same too, 2 (n-1)/n N out and in, but
    the optimizer's state and work are divided by n. Elsewhere p.grad is a stand-in with the norm of g
    (`ReduceToOwners`). A schedule may take other ways to owners and back (`owner_ways`).

    With a staleness s, stale synchronous parallel (Ho et al., NeurIPS 2013): owners make one step with the mean of
    every n gradients, in the order in which they arrive. A rank that has made c steps continues when the slowest has
    made c - s, with weights that hold all gradients but the last fewer than n of those that had arrived by then. With a
    codec C, worker i sends C(g_i + e_i) and keeps e_i <- g_i + e_i - C(g_i + e_i); owners decode and add up.
    """

    node: ShardedOptimizer | ParameterServer

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A residual, for servers with a codec."""
        is_coded = isinstance(self.node, ParameterServer) and self.node.codec is not None
        return {"residual": None} if is_coded else {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the collective, for the parts that the engine has placed; servers have none."""
        if isinstance(self.node, ParameterServer):
            return None
        codec = None if self.node.codec is None else codec_from(self.node.codec)
        return ReduceToOwners(bucket.parts, comm, like=bucket.flat, codec=codec, ways=owner_ways(self.node, comm))

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scale first, then add up; at a free pace gradients stay, and go to owners when all are there."""
        if isinstance(self.node, ShardedOptimizer):
            bucket.flat.mul_(1 / comm.size)
            self.on_prescaled(bucket, state, comm, context)

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Add up at the owners."""
        reduce: ReduceToOwners = state.workspace
        reduce(bucket.flat, context.seed)
