"""Schedules of a plan, found for one network, in the place of "auto"."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import Overheads
from pliant.planner.genome import Genome
from pliant.schedules.dense import fastest_schedule
from pliant.schedules.owned import fastest_owner_schedule
from pliant.simulator.pauses import pause_of_gradients_s, pause_of_weights_s
from pliant.spec import (
    BlockSparse,
    Exchange,
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

_BUCKET_BYTES = 25 << 20
"""Of DDP, where a plan does not say."""


def scheduled_plan(genes: Genome, workload: Workload, topology: Topology) -> SyncPlan:
    """Return the plan of a genome, named "auto", with schedules for the network."""
    return with_schedules(genes.plan("auto"), workload, topology)


def with_schedules(plan: SyncPlan, workload: Workload, topology: Topology) -> SyncPlan:
    """Return the plan with the schedule that is predicted to be the fastest in the place of each that is "auto".

    It is made for the plan's buckets, or for the whole model if that is smaller, for what a node sends of them, and for
    the pause in which ranks compute before it, since links that were silent start slowly. That of owners is made for
    the whole model's weights on their way back as well. Where torch's own all-reduce is predicted to be as fast, or of
    sums in codes owners of equal parts, or straight messages to owners, that remains.
    """
    if not any(rule.exchange.needs_links for rule in plan.rules):
        return plan
    num_bytes = min(4 * workload.numel, plan.bucket_bytes or _BUCKET_BYTES)

    def fastest(node: Exchange, places: Topology, overheads: Overheads) -> Scheduling | OwnerScheduling:
        if isinstance(node, OwnedOptimizer):
            sum_bytes = 4 * workload.numel if node.steps_beside else num_bytes
            return _to_owners(node, sum_bytes, 4 * workload.numel, topology, places, overheads)
        sent_bytes, is_coded = num_bytes, isinstance(node, ScatterGather)
        if isinstance(node, ScatterGather):
            sent_bytes = payload_bytes(node.codec, num_bytes // 4)
        elif isinstance(node, BlockSparse):
            sent_bytes, is_coded = round(node.selection.ratio * num_bytes), node.selection.is_coded
        return fastest_schedule(sent_bytes, places, overheads, is_coded=is_coded) or "ring"

    def known(node: Exchange) -> Exchange:
        overheads = replace(Overheads(), pause_s=_pause_s(node, workload, plan))
        places = topology.one_rank_each if node.levels else topology
        return with_schedule(node, partial(fastest, places=places, overheads=overheads))

    return replace(plan, rules=tuple(replace(rule, exchange=known(rule.exchange)) for rule in plan.rules))


def _to_owners(
    node: OwnedOptimizer,
    sum_bytes: int,
    model_bytes: int,
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
    sent_bytes = sum_bytes if node.codec is None else payload_bytes(node.codec, sum_bytes // 4)
    to_bytes, from_bytes = (
        tuple(math.ceil(num_bytes * share / sum(owned)) for share in owned) for num_bytes in (sent_bytes, model_bytes)
    )
    num_sums = math.ceil(model_bytes / max(1, sum_bytes))
    return fastest_owner_schedule(to_bytes, from_bytes, places, overheads, num_sums=num_sums) or "direct"


def _pause_s(node: Exchange, workload: Workload, plan: SyncPlan) -> float:
    """Return how long ranks compute from one exchange of a node to the next."""
    if node.exchanges_weights:
        return pause_of_weights_s(node.timing, workload, 1.0)
    choose = max if plan.order == "at_end" else min
    ready_s = choose((tensor.ready_s for tensor in workload.tensors), default=0.0)
    return pause_of_gradients_s(workload, ready_s, node.timing.period, 1.0)
