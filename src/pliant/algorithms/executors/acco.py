"""Gradients that owners use while a rank computes the next ones: accumulate while you communicate."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import Acco

__all__ = ["AccoExecutor"]


@dataclass(frozen=True)
class AccoExecutor:
    """Owners step twice for each pair of steps of the training loop, on trial and for good, beside its backward passes.

    Nabli et al., ACCO (arXiv:2406.02613, Algorithm 1), with an optimizer u divided among n ranks as by
    `ShardedOptimizer`, theta the weights and th an estimate of the next ones:

        g1 at th_t is summed:       th_{t+1} <- u(theta_t, mean of g1), u's state stays;  meanwhile g2 at theta_t
        g1 + g2 are summed:         theta_{t+1} <- u(theta_t, mean of g1 + g2);           meanwhile g1 at th_{t+1}

    An exchange may take as long as a whole step, forward and backward, and no gradient is late: each was taken at the
    weights, or at an estimate of them. Bytes per step of the loop: those of an all-reduce, 2 (n-1)/n N, so twice those
    per step of the optimizer. Memory: 2N for gradients, (n-1)/n N for those of others, N for the weights that come,
    and 1/n of a copy of weights and of the optimizer's state. The engine does it all between steps (`engine.acco`);
    gradients stay in backward.
    """

    node: Acco

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return nothing, since the engine keeps what there is."""
        return {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return nothing, since no bucket is exchanged."""

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Leave gradients as they are."""
