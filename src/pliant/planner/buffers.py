"""Advice on DDP's broadcast of buffers, for which each step of a training on long links waits."""

from pliant.netmodel import Links
from pliant.spec import SyncPlan, Topology, Workload
from pliant.spec.units import format_time

__all__ = ["buffers_reason"]

_NOTABLE = 0.1
"""Part of a step's time that the broadcast must take at least."""


def buffers_reason(workload: Workload, plan: SyncPlan, topology: Topology | None, step_s: float) -> str:
    """Return why each rank should keep buffers of its own; "" where that is not known to save about a tenth of a step.

    DDP sends buffers from rank 0 before each forward pass. Over Gloo the farthest rank waits for them there and back.

    Args:
        workload: Its layers tell whether there is BatchNorm.
        plan: Where ranks have weights of their own, DDP sends none.
        topology: Hosts and links; None if they are not known.
        step_s: Time of a step under the plan, in s; NaN if it is not known.

    """
    has_buffers = not workload.is_sharded and any("BatchNorm" in tensor.layer for tensor in workload.tensors)
    if topology is None or not has_buffers or any(rule.exchange.weights_may_diverge for rule in plan.rules):
        return ""
    delays_s = Links(topology).delays_s
    trip_s = float((delays_s[0] + delays_s[:, 0]).max())
    if not trip_s > _NOTABLE * step_s:
        return ""
    return (
        "DDP sends the buffers of BatchNorm from rank 0 before each forward pass, which takes a round trip of "
        f"{format_time(trip_s)} where a step takes {format_time(step_s)}; with broadcast_buffers=False "
        "(forward_sync_buffers=False in later versions of torch) ranks keep statistics of their own, which no training "
        "step reads: evaluate rank 0's, which all would have got."
    )
