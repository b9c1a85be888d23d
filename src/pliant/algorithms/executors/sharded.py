"""Models that are divided among ranks: what those do that hold the same shard."""

from dataclasses import dataclass, field
from typing import Any, cast

from pliant.algorithms.base import Algorithm, Deferred, ExchangesWeights, State, StateSpec, StepContext
from pliant.algorithms.executors.all_reduce import AllReduceExecutor
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import AllReduce, Sharded

__all__ = ["ShardedExecutor"]


@dataclass(frozen=True)
class ShardedExecutor:
    """Let replicas run the inner algorithm on their local shards; the engine's front end moves shards themselves.

    A bucket holds the shards of one `fully_shard` call, and comm has the ranks that hold the same ones: of a model on
    W shards each sends 1/W of what it would send of a whole model.
    """

    node: Sharded
    inner: Algorithm = field(default_factory=lambda: AllReduceExecutor(AllReduce()))
    """Algorithm of the replicas; the exact one stands for a plan that leaves them to torch, and gets no bucket."""

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The inner algorithm's slots, of the shape of a local shard."""
        return self.inner.slots(shape, comm)

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm."""
        return self.inner.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Exchange reduced gradients among replicas."""
        return self.inner.on_ready(bucket, state, comm, context)

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Let the inner algorithm begin from these weights."""
        cast(ExchangesWeights, self.inner).reset_reference(bucket, state)

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Exchange weights among replicas."""
        return cast(ExchangesWeights, self.inner).exchange_weights(bucket, state, comm, context)
