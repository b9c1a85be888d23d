"""Sentences in which "auto" explains its choice."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.planner import SearchResult
from pliant.simulator.layout import itemsize
from pliant.spec import SyncPlan, Topology, Workload

__all__ = ["Choice", "explain"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Outcome of a search; the same on all ranks, but for `num_tried`."""

    plan: SyncPlan
    """The plan that is in force from then on."""
    steps_ratio: float
    """How many times the steps of exact training it is taken to need."""
    gains: tuple[float, ...] = ()
    """How many times faster than torch's own exchange the best of the others was, in turns; empty if none was tried."""
    adopted: bool = False
    """Whether it is another than torch's own exchange."""
    num_tried: int = 0
    """Plans that were tried, on the first rank; 0 elsewhere."""


def explain(
    workload: Workload,
    topology: Topology,
    plan: SyncPlan,
    exact: SyncPlan,
    ratio: float,
    gains: Sequence[float],
    *,
    adopted: bool,
    found: SearchResult | None,
    predicted: bool = False,
) -> str:
    """Return a paragraph on the plan that was kept, and why.

    Args:
        workload: What a step computes and exchanges.
        topology: As it was measured.
        plan: The best of those that were tried.
        exact: Torch's own exchange.
        ratio: How many times the steps of exact training the plan is taken to need.
        gains: How many times faster it was to the same accuracy, turn by turn; empty if none was tried.
        adopted: Whether it was kept.
        found: Result of the search.
        predicted: Whether the time of torch's own exchange was predicted, and not measured in turns.

    """
    num_bytes = sum(tensor.numel * itemsize(tensor) for tensor in workload.tensors)
    rates = [rate for host in topology.hosts if (rate := min(host.send_bytes_per_s, host.receive_bytes_per_s)) > 0]
    rate = f"{min(rates) * 8e-6:.3g} Mbit/s" if rates and len(topology.hosts) > 1 else "no limit that was found"
    tried = found.trials if found is not None else ()
    chosen = plan if adopted else exact
    own = f"{workload.wrapper}'s own exchange"
    verdict = (
        f"it is {statistics.median(gains):.2f} times as fast to the same accuracy as {own}, whose "
        f"time was known or predicted and took no turn, counting {ratio:.2f} times the steps"
        if adopted and predicted
        else f"it is {statistics.median(gains):.2f} times as fast to the same accuracy as {own} "
        f"in {len(gains)} turns ({min(gains):.2f} to {max(gains):.2f}), counting {ratio:.2f} times the steps"
        if adopted
        else f"the best of the others was {statistics.median(gains):.2f} times as fast, which is not enough"
        if gains
        else "none of the others was better"
        if tried
        else "none of the others is predicted to pay, so that none was tried"
    )
    return (
        f"A step computes for {workload.compute_s:.3g} s and has {num_bytes / 1e6:.3g} MB of gradients; the slowest "
        f"host of {len(topology.hosts)} carries {rate}. Of {len(tried)} plans that were tried "
        f"({sum(t.status == 'ok' for t in tried)} to the end), this one was kept: {verdict}. {chosen}"
    )
