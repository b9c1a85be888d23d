"""Exact inside a host, relaxed between hosts."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from pliant.algorithms.base import Algorithm, Deferred, ExchangesWeights, State, StateSpec, StepContext, prefix_slots
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.comm.hierarchical import levels_of
from pliant.spec import BetweenHosts

__all__ = ["BetweenHostsExecutor"]


@dataclass(frozen=True)
class BetweenHostsExecutor:
    """Sum inside each host, let one rank per host run the algorithm with the others, broadcast inside.

    Gradients of hosts of unequal size are weighted so that the result estimates the mean over ranks, not over hosts.
    Where weights are exchanged, gradients are averaged inside the host in every step, so that its ranks stay equal,
    and one of them speaks for the host.
    """

    prefix: ClassVar[str] = "host/"
    """Of slots that only the rank which leads its host has."""
    node: BetweenHosts
    inner: Algorithm

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The inner algorithm's slots on the rank that leads its host, under a prefix."""
        outer = levels_of(comm).outer
        return {} if outer is None else prefix_slots(self.prefix, self.inner.slots(shape, outer))

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm on the rank that leads its host."""
        outer = levels_of(comm).outer
        return None if outer is None else (self.inner.prepare(bucket, outer),)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Go up, across and down; or, where weights are exchanged, stay in the host."""
        levels = levels_of(comm)
        if self.node.exchanges_weights and context.step >= self.node.timing.until_step:
            levels.inner.all_reduce(bucket.flat.mul_(1 / levels.inner.size)).wait()
            return None
        deferred: list[Deferred | None] = []

        def between(x: Tensor, outer: Comm) -> None:
            del x  # it is bucket.flat, which the inner algorithm works on
            deferred.append(self.inner.on_ready(bucket, _leaders(state), outer, context))

        levels.average(bucket.flat, between)
        return deferred[0] if deferred else None

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Let the leader begin from these weights."""
        if state.workspace is not None:
            cast(ExchangesWeights, self.inner).reset_reference(bucket, _leaders(state))

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Let leaders mix, and give the result to the host."""
        levels, rest = levels_of(comm), None
        if levels.outer is not None:
            rest = cast(ExchangesWeights, self.inner).exchange_weights(bucket, _leaders(state), levels.outer, context)
        levels.inner.broadcast(bucket.flat, 0).wait()
        return rest


def _leaders(state: State) -> State:
    return state.part(BetweenHostsExecutor.prefix, state.workspace[0])
