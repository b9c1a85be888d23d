"""Changes of weights of which ranks send what the next pass in bfloat16 would see."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.collectives.visible import MarkedAverage
from pliant.comm.base import Comm
from pliant.spec import VisibleChanges

__all__ = ["VisibleChangesExecutor"]


@dataclass(frozen=True)
class VisibleChangesExecutor:
    """Send the elements of a change that change the weight's bfloat16; keep the others for later exchanges.

    PULSELoCo (arXiv:2602.03839), as its text describes it, with theta where all set out and x_i where a rank is:

        s <- (theta - x_i) + e;   send s where bf16(theta - s) != bf16(theta);   there e <- 0, elsewhere e <- s

    The mean counts what a rank does not send as zero. So a change travels once it has grown to about 1/256 of its
    weight: after few steps at small rates, as of reinforcement learning, that is a small share, and at those of
    pre-training nearly all. Where a rank has more than a third of a bucket to send, everything is sent, and e is 0.
    Bytes: those of `MarkedAverage`. `LocalSteps` gives theta, as the slot ``anchor``.
    """

    node: VisibleChanges

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The residual: changes that were too small to be seen."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the exchange of the bucket."""
        return MarkedAverage(bucket.numel, comm, bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Accumulate, compare with the weights, exchange, and keep the rest."""
        s, e, theta = bucket.flat, state.flat["residual"], state.flat["anchor"]
        s.add_(e)
        visible = (theta - s).bfloat16() != theta.bfloat16()
        e.copy_(s).masked_fill_(visible, 0.0)
        if state.workspace(s, visible):
            e.zero_()
