"""Schedules of a plan, found for one network, in the place of "auto"."""

import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from pliant.layouts.division import WEIGHT_BUCKET_NUMEL, factor_shape
from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import Overheads, overheads_of
from pliant.planner.genome import Genome
from pliant.schedules.dense import fastest_schedule
from pliant.schedules.owned import fastest_owner_schedule
from pliant.simulator import BUCKET_BYTES
from pliant.simulator.layout import itemsize
from pliant.simulator.pauses import pause_of_gradients_s, pause_of_weights_s
from pliant.spec import (
    AllReduce,
    BlockSparse,
    Exchange,
    LowRank,
    OwnedOptimizer,
    OwnerScheduling,
    ScatterGather,
    Scheduling,
    SyncPlan,
    Topology,
    Workload,
    with_schedule,
)

__all__ = ["scheduled_plan", "with_schedules"]


def scheduled_plan(
    genes: Genome, workload: Workload, topology: Topology, overheads: Overheads | None = None
) -> SyncPlan:
    """Return the plan of a genome, named "auto", with schedules for the network."""
    return with_schedules(genes.plan("auto"), workload, topology, overheads)


def with_schedules(
    plan: SyncPlan, workload: Workload, topology: Topology, overheads: Overheads | None = None
) -> SyncPlan:
    """Return the plan with the schedule that is predicted to be the fastest in the place of each that is "auto".

    It is made for the plan's buckets, or for the whole model if that is smaller, for what a node sends of them, and for
    the pause in which ranks compute before it, since links that were silent start slowly. That of owners is made for
    the whole model's weights on their way back as well. Where torch's own all-reduce is predicted to be as fast, or of
    sums in codes owners of equal parts, or straight messages to owners, that remains.

    Args:
        plan: Any plan.
        workload: What a step computes and exchanges.
        topology: The network.
        overheads: Measured costs beside it; if None, those of the machines that hosts name, or the defaults.

    """
    if not any(rule.exchange.needs_links for rule in plan.rules):
        return plan
    beside = overheads if overheads is not None else overheads_of(topology)

    def known(node: Exchange) -> Exchange:
        bucket = _bucket_of(node, plan, workload)
        costs = replace(beside, pause_s=_pause_s(node, workload, plan))
        places = topology.one_rank_each if node.levels else topology

        def fastest(inner: Exchange) -> Scheduling | OwnerScheduling:
            if isinstance(inner, OwnedOptimizer):
                return _to_owners(inner, bucket, workload, topology, places, costs)
            is_coded = inner.selection.is_coded if isinstance(inner, BlockSparse) else isinstance(inner, ScatterGather)
            sent_bytes = _sent_bytes(inner, bucket, workload)
            return fastest_schedule(sent_bytes, places, costs, is_coded=is_coded) or "ring"

        return with_schedule(node, fastest)

    return replace(plan, rules=tuple(replace(rule, exchange=known(rule.exchange)) for rule in plan.rules))


class _Bucket(NamedTuple):
    """Elements that are exchanged at a time."""

    numel: int
    value_bytes: float
    """Bytes of each where no codec is used; the mean where types differ."""


def _bucket_of(node: Exchange, plan: SyncPlan, workload: Workload) -> _Bucket:
    """Return a bucket of gradients, or of weights, which are exchanged in float32; of the whole model if it is less."""
    if node.exchanges_weights:
        return _Bucket(min(math.ceil(workload.numel / node.timing.fragments), WEIGHT_BUCKET_NUMEL), 4.0)
    value_bytes = _model_bytes(workload) / max(1, workload.numel)
    full = round((plan.bucket_bytes or BUCKET_BYTES) / (value_bytes or 4.0))
    largest = max((tensor.numel for tensor in workload.tensors if not tensor.sparse_rows), default=0)  # none is cut
    return _Bucket(min(workload.numel, max(full, largest)), 4.0 if node.works_in_float32 else value_bytes)


def _model_bytes(workload: Workload) -> int:
    return sum(tensor.numel * itemsize(tensor) for tensor in workload.tensors)


def _sent_bytes(node: Exchange, bucket: _Bucket, workload: Workload) -> int:
    """Return the bytes of the vector, or of the payload, that a node adds up of a bucket; of two the larger one's."""
    if isinstance(node, BlockSparse):
        return round(4 * node.selection.ratio * bucket.numel)
    if isinstance(node, LowRank):
        factors = [(shape, factor_shape(shape, node.rank)) for shape in (tensor.shape for tensor in workload.tensors)]
        first = sum(math.prod(shape) if factor is None else shape[0] * factor[0] for shape, factor in factors)
        second = sum(math.prod(factor) for _, factor in factors if factor is not None)
        return round(4 * bucket.numel * max(first, second) / max(1, workload.numel))
    if isinstance(node, (AllReduce, ScatterGather)) and node.codec is not None:
        return payload_bytes(node.codec, bucket.numel)
    return round(bucket.value_bytes * bucket.numel)


def _to_owners(
    node: OwnedOptimizer,
    bucket: _Bucket,
    workload: Workload,
    topology: Topology,
    places: Topology,
    overheads: Overheads,
) -> OwnerScheduling:
    """Return the way of sums to owners and of weights from them, among ranks or hosts, by the shares that ranks own."""
    placement, num_ranks = node.placement, topology.num_ranks
    counts = Counter(placement.owners or range(num_ranks))
    owned = placement.bandwidths or tuple(float(counts[rank]) for rank in range(num_ranks))
    if places.num_ranks < num_ranks:
        owned = tuple(sum(owned[rank] for rank in topology.ranks_of(k)) for k in range(len(topology.hosts)))
    summed = _Bucket(workload.numel, 4.0) if node.steps_beside else bucket
    sent_bytes = summed.value_bytes * summed.numel if node.codec is None else payload_bytes(node.codec, summed.numel)
    to_bytes, from_bytes = (
        tuple(math.ceil(num_bytes * share / sum(owned)) for share in owned)
        for num_bytes in (sent_bytes, _model_bytes(workload))
    )
    num_sums = math.ceil(workload.numel / max(1, summed.numel))
    return fastest_owner_schedule(to_bytes, from_bytes, places, overheads, num_sums=num_sums) or "direct"


def _pause_s(node: Exchange, workload: Workload, plan: SyncPlan) -> float:
    """Return how long ranks compute from one exchange of a node to the next."""
    if node.exchanges_weights:
        return pause_of_weights_s(node.timing, workload, 1.0)
    choose = max if plan.order == "at_end" else min
    ready_s = choose((tensor.ready_s for tensor in workload.tensors), default=0.0)
    return pause_of_gradients_s(workload, ready_s, node.timing.period, 1.0)
