"""Owners of parameters, which hold their optimizer state and step them: ZeRO stage 1 and parameter servers."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import codec_from
from pliant.collectives.owner import ReduceToOwners
from pliant.comm.base import Comm
from pliant.spec import ParameterServer, ShardedOptimizer

__all__ = ["OwnerExecutor"]


@dataclass(frozen=True)
class OwnerExecutor:
    """Gradients go to the owner of their parameter, which steps it and sends the new weights to all.

    In lockstep, of parameter p with owner o(p), on n ranks (Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1; Li et
    al., parameter server, OSDI 2014):

        at o(p):  g <- (1/n) sum_i g_i;  x_p <- optimizer(x_p, g);  everywhere:  x_p <- x_p of o(p)

    This is an all-reduce and the plain optimizer, up to rounding. Bytes are the same too, 2 (n-1)/n N out and in, but
    the optimizer's state and work are divided by n. Elsewhere p.grad is a stand-in with the norm of g
    (`ReduceToOwners`).

    With a staleness s, stale synchronous parallel (Ho et al., NeurIPS 2013): owners make one step with the mean of
    every n gradients, in the order in which they arrive. A rank that has made c steps continues when the slowest has
    made c - s, with weights that hold all gradients but the last fewer than n of those that had arrived by then. With a
    codec C, worker i sends C(g_i + e_i) and keeps e_i <- g_i + e_i - C(g_i + e_i); owners decode and add up.
    """

    node: ShardedOptimizer | ParameterServer

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The owner's rank, which the engine sets when a plan begins; and a residual for servers with a codec."""
        is_coded = isinstance(self.node, ParameterServer) and self.node.codec is not None
        return {"owner": (), "residual": None} if is_coded else {"owner": ()}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make room for the collective, which is made once owners are known."""
        return list[ReduceToOwners]()

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scale first, then add up; at a free pace gradients stay, and go to owners when all are there."""
        if isinstance(self.node, ShardedOptimizer):
            bucket.flat.mul_(1 / comm.size)
            self.on_prescaled(bucket, state, comm, context)

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Add up at the owners."""
        made: list[ReduceToOwners] = state.workspace
        if not made:
            given = self.node.codec if isinstance(self.node, ShardedOptimizer) else None
            codec = None if given is None else codec_from(given)
            owners = [int(state.of["owner"][span.name]) for span in bucket.spans]
            numels = [span.numel for span in bucket.spans]
            made.append(ReduceToOwners(numels, owners, comm, like=bucket.flat, codec=codec))
        made[0](bucket.flat, context.seed)
