"""Schedules of a plan, found for one network, in the place of "auto"."""

from dataclasses import replace

from pliant.planner.genome import Genome
from pliant.schedules.dense import fastest_schedule
from pliant.spec import SyncPlan, Topology, Workload, with_schedule

__all__ = ["scheduled_plan", "with_schedules"]

_BUCKET_BYTES = 25 << 20
"""Of DDP, where a plan does not say."""


def scheduled_plan(genes: Genome, workload: Workload, topology: Topology) -> SyncPlan:
    """Return the plan of a genome, named "auto", with schedules for the network."""
    return with_schedules(genes.plan("auto"), workload, topology)


def with_schedules(plan: SyncPlan, workload: Workload, topology: Topology) -> SyncPlan:
    """Return the plan with the schedule that is predicted to be the fastest in the place of each that is "auto".

    It is made for the plan's buckets, or for the whole model if that is smaller. Where torch's own all-reduce is
    predicted to be as fast, that remains.
    """
    if not any(rule.exchange.needs_links for rule in plan.rules):
        return plan
    num_bytes = min(4 * workload.numel, plan.bucket_bytes or _BUCKET_BYTES)
    found = fastest_schedule(num_bytes, topology) or "ring"
    return replace(plan, rules=tuple(replace(r, exchange=with_schedule(r.exchange, found)) for r in plan.rules))
