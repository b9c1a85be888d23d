"""Schedules of a plan, found for one network, in the place of "auto"."""

from dataclasses import replace

from pliant.netmodel import Overheads
from pliant.schedules.dense import fastest_schedule
from pliant.spec import SyncPlan, Topology, Workload, with_schedule

__all__ = ["with_schedules"]

_BUCKET_BYTES = 25 << 20
"""Of DDP, where a plan does not say."""


def with_schedules(
    plan: SyncPlan, workload: Workload, topology: Topology, overheads: Overheads | None = None
) -> SyncPlan:
    """Return the plan with the schedule that is predicted to be the fastest in the place of each that is "auto".

    It is made for the plan's buckets, or for the whole model if that is smaller. Where torch's own all-reduce is
    predicted to be as fast, that remains.
    """
    if not any(rule.exchange.needs_links for rule in plan.rules):
        return plan
    num_bytes = min(4 * workload.numel, plan.bucket_bytes or _BUCKET_BYTES)
    found = fastest_schedule(num_bytes, topology, overheads) or "ring"
    return replace(plan, rules=tuple(replace(r, exchange=with_schedule(r.exchange, found)) for r in plan.rules))
