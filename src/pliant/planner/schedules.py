"""Schedules of a plan, found for one network, in the place of "auto"."""

from dataclasses import replace
from functools import partial

from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import Overheads
from pliant.planner.genome import Genome
from pliant.schedules.dense import fastest_schedule
from pliant.simulator.pauses import pause_of_gradients_s, pause_of_weights_s
from pliant.spec import (
    BlockSparse,
    Exchange,
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
    the pause in which ranks compute before it, since links that were silent start slowly.
    Where torch's own all-reduce is predicted to be as fast, or of sums in codes owners of equal parts, that remains.
    """
    if not any(rule.exchange.needs_links for rule in plan.rules):
        return plan
    num_bytes = min(4 * workload.numel, plan.bucket_bytes or _BUCKET_BYTES)

    def fastest(node: Exchange, overheads: Overheads) -> Scheduling:
        sent_bytes, is_coded = num_bytes, isinstance(node, ScatterGather)
        if isinstance(node, ScatterGather):
            sent_bytes = payload_bytes(node.codec, num_bytes // 4)
        elif isinstance(node, BlockSparse):
            sent_bytes, is_coded = round(node.selection.ratio * num_bytes), node.selection.is_coded
        return fastest_schedule(sent_bytes, topology, overheads, is_coded=is_coded) or "ring"

    def known(node: Exchange) -> Exchange:
        overheads = replace(Overheads(), pause_s=_pause_s(node, workload, plan))
        return with_schedule(node, partial(fastest, overheads=overheads))

    return replace(plan, rules=tuple(replace(rule, exchange=known(rule.exchange)) for rule in plan.rules))


def _pause_s(node: Exchange, workload: Workload, plan: SyncPlan) -> float:
    """Return how long ranks compute from one exchange of a node to the next."""
    if node.exchanges_weights:
        return pause_of_weights_s(node.timing, workload, 1.0)
    choose = max if plan.order == "at_end" else min
    ready_s = choose((tensor.ready_s for tensor in workload.tensors), default=0.0)
    return pause_of_gradients_s(workload, ready_s, node.timing.period, 1.0)
