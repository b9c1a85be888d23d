"""Each parameter has an owner, who alone holds its optimizer state and steps it: parameter servers without servers."""

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
    """Gradients go to the owner of their parameter; it steps, and sends the new weights to all.

    In lockstep, of parameter p with owner o(p), on n ranks (Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1;
    Li et al., parameter server, OSDI 2014):

        at o(p):  g <- (1/n) sum_i g_i;  x_p <- optimizer(x_p, g);  everywhere:  x_p <- x_p of o(p)

    which is an all-reduce and the plain optimizer, up to rounding; bytes are the same too, 2 (n-1)/n N out and in, but
    the optimizer's state and work are divided by n. Elsewhere p.grad is a stand-in with the norm of g
    (`ReduceToOwners`).

    With a staleness s, stale synchronous parallel (Ho et al., NeurIPS 2013): owners make one step with the mean of
    every n gradients, from whomever and in the order in which they come; a rank that has made c steps goes on when
    the slowest has made c - s, with weights that hold all gradients but the last fewer than n of what had come by then.
    """

    node: ShardedOptimizer | ParameterServer

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The owner's rank: the engine places all parameters when a plan begins."""
        return {"owner": ()}

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
