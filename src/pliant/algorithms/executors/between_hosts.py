"""Exact inside a host or a rack, relaxed between them."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pliant.algorithms.base import Algorithm, Deferred, ExchangesWeights, State, StateSpec, StepContext, prefix_slots
from pliant.buckets import Bucket
from pliant.collectives.hierarchical import HierarchicalAverage
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm, levels_of
from pliant.spec import BetweenGroups

__all__ = ["BetweenGroupsExecutor"]


@dataclass(kw_only=True)
class _Prepared:
    """Workspace of a bucket: the exchange of two levels, and what this rank exchanges with other hosts."""

    average: HierarchicalAverage
    slice: Bucket | None
    """The slice that the inner algorithm gets; the bucket itself if there is one slice. None for other ranks."""
    workspace: Any
    first_step: int | None = None
    """Step of the first exchange of this layout."""


@dataclass(frozen=True)
class BetweenGroupsExecutor:
    """Sum inside each host (or rack), let ranks of the same place on all hosts run the algorithm, gather inside.

    A bucket is cut into as many slices as the smallest host has ranks, and the k-th rank of each host exchanges slice k
    with those of the other hosts, so that every rank's link works. Where the inner node does not allow slices, the
    first rank of each host exchanges the whole bucket. Phases and bytes: `HierarchicalAverage`. Gradients of hosts of
    unequal size are weighted so that the result estimates the mean over ranks, not over hosts.

    An inner algorithm with owners gets the levels themselves: parts go to their owners by way of one rank of each host
    (`ReduceToOwners`).

    Where weights are exchanged, gradients are averaged inside the host in every step, so that its ranks stay equal,
    and the first of them exchanges the host's weights. Where ranks count by their work, a host counts by that of all
    of its ranks.
    """

    node: BetweenGroups
    inner: Algorithm

    @property
    def prefix(self) -> str:
        """Prefix of slots of ranks that exchange with other hosts; of slices, place and number of slices follow."""
        return f"{self.node.LEVEL}/"

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The inner algorithm's slots on ranks that exchange with other hosts, under a prefix."""
        levels = levels_of(comm)
        if self.node.has_owners:
            return self.inner.slots(shape, comm)
        if (outer := self._outer(levels)) is None:
            return {}
        return prefix_slots(self._prefix(levels), self.inner.slots(shape, outer))

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm for this rank's slice; with owners for all of the bucket."""
        levels = levels_of(comm)
        if self.node.has_owners:
            return self.inner.prepare(bucket, levels)
        average = HierarchicalAverage(bucket.numel, levels, self._num_slices(levels))
        if (outer := self._outer(levels)) is None:
            return _Prepared(average=average, slice=None, workspace=None)
        part = bucket
        if self._num_slices(levels) > 1:
            part = Bucket(name=bucket.name, spans=(), flat=bucket.flat[slice(*average.mine)])
        return _Prepared(average=average, slice=part, workspace=self.inner.prepare(part, outer))

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Go up, across and down; or, where weights are exchanged, stay in the host."""
        if self.node.has_owners:
            return self.inner.on_ready(bucket, state, levels_of(comm), context)
        levels, own = levels_of(comm), cast(_Prepared, state.workspace)
        if self.node.exchanges_weights and context.step >= self.node.timing.until_step:
            levels.inner.all_reduce(bucket.flat.mul_(1 / levels.inner.size)).wait()
            return None
        if self._num_slices(levels) > 1:
            self._bring_home(own, state, context)
        deferred: list[Deferred | None] = []

        def between(x: Tensor, outer: Comm) -> None:
            if own.slice is not None:
                part = replace(own.slice, flat=x)  # the workspace holds nothing of a buffer that DDP may free
                deferred.append(self.inner.on_ready(part, self._state(state, levels), outer, context))

        own.average(bucket.flat, between)
        return deferred[0] if deferred else None

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Let the leader begin from these weights."""
        if (own := cast(_Prepared, state.workspace)).slice is not None:
            inner = state.part(self.prefix, own.workspace)
            cast(ExchangesWeights, self.inner).reset_reference(bucket, inner)

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Let leaders mix, and give the result to the host."""
        levels, rest = levels_of(comm), None
        is_exchanged = context.step > self.node.timing.until_step  # before, a host's weights are equal
        if is_exchanged and self.node.timing.weighted:
            context = replace(context, share=_share_of_host(context.share, levels))
        if levels.leaders is not None:
            inner = cast(ExchangesWeights, self.inner)
            rest = inner.exchange_weights(bucket, self._state(state, levels), levels.leaders, context)
        if is_exchanged:
            cast(_Prepared, state.workspace).average.spread(bucket.flat)
        return rest

    def _num_slices(self, levels: HierarchicalComm) -> int:
        return levels.num_places if self.node.inner.slices_freely else 1

    def _outer(self, levels: HierarchicalComm) -> Comm | None:
        """Return the comm over which this rank exchanges with other hosts, or None if it does not."""
        return levels.outer if levels.inner.rank < self._num_slices(levels) else None

    def _prefix(self, levels: HierarchicalComm) -> str:
        """Return the prefix of this rank's slots; of slices it names which, so that ranks load only their own."""
        num_slices = self._num_slices(levels)
        return self.prefix if num_slices == 1 else f"{self.prefix}{levels.inner.rank}of{num_slices}/"

    def _state(self, state: State, levels: HierarchicalComm) -> State:
        """Return the inner algorithm's state: of a slice, its elements of each slot."""
        own = cast(_Prepared, state.workspace)
        inner = state.part(self._prefix(levels), own.workspace)
        if self._num_slices(levels) == 1:
            return inner
        return State(flat={k: v[slice(*own.average.mine)] for k, v in inner.flat.items()}, workspace=own.workspace)

    def _bring_home(self, own: _Prepared, state: State, context: StepContext) -> None:
        """Move what is kept to the owners of this layout's slices; again if the step was skipped, which undoes it."""
        if own.first_step is None or context.step <= own.first_step:
            own.first_step = context.step
            for kept in state.flat.values():
                own.average.bring_home(kept)


def _share_of_host(share: float, levels: HierarchicalComm) -> float:
    """Return a host's share of all work, times the number of hosts, given that of a rank, times theirs. Collective."""
    total = torch.tensor([share], dtype=torch.float64)
    levels.inner.all_reduce(total).wait()
    return float(total) * levels.num_groups / levels.size
