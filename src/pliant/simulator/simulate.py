"""Plan + workload + topology -> predicted time of a step, what it consists of, and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pliant.netmodel import KEYS, Floats, Overheads, overheads_of
from pliant.simulator.context import SimulationContext
from pliant.simulator.critical_path import CriticalSegment, critical_path
from pliant.simulator.events import timeline_of
from pliant.simulator.prepared import PreparedPlan, prepare
from pliant.simulator.rank_clock import RankActivity
from pliant.simulator.skew import step_with_skew_s
from pliant.simulator.stepping import Stepper
from pliant.spec import SyncPlan, Timeline, Topology, Workload

__all__ = ["BUCKET_BYTES", "Simulated", "context_for", "run", "simulate", "simulate_many", "step_times"]

BUCKET_BYTES = 25 << 20
"""Default size of DDP's buckets."""
_MOST_STEPS = 2048
"""A period that is longer is cut here."""
_MOST_TURNS = 16
"""Exchanges at a free pace whose mean is taken."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """Outcome of a simulation. Times per step are means over a whole period of the plan."""

    step_s: float
    """From one step to the next; where ranks go at paces of their own, the time in which n ranks make n steps."""
    makespan_s: float
    """Time from the start of the first to the end of the last of `steps` steps, with all queues empty at first."""
    compute_s: float
    """Seconds per step that the slowest rank computes, including the slowdown by exchanges beside it."""
    exposed_s: float
    """Seconds per step that it waits for exchanges. compute_s + exposed_s = step_s."""
    exchange_s: float
    """Seconds per step of its exchanges, hidden or not."""
    codec_s: float
    """Seconds per step that its exchanges compute, hidden or not: coding, adding up, overhead."""
    sent_bytes: tuple[float, ...]
    """Per rank, of a step."""
    period: int
    """Steps that the means are over."""
    critical_path: tuple[tuple[str, float], ...]
    """Segments of the critical path of one period, in order, with their seconds; equal neighbours are merged."""
    counted: dict[str, float]
    """Quantities on the critical path of a step, by the names of `KEYS`; what is 0 is left out.

    step_s is the sum of each times its coefficient in the overheads, to rounding: so coefficients can be fitted to
    measured steps by non-negative least squares, and learners can start from the same numbers."""
    prepared: PreparedPlan = field(repr=False)
    stepper: Stepper = field(repr=False)

    @cached_property
    def timeline(self) -> Timeline:
        """Events on the first ranks: one period, after the one before if anything is under way then."""
        return timeline_of(self.stepper, self.prepared)

    @property
    def bottleneck(self) -> str:
        """The largest part of the critical path, in a word or two."""
        seconds = self.prepared.context.overheads.coefficients() * np.array(
            [self.counted.get(key, 0.0) for key in KEYS]
        )
        network = float(seconds[KEYS.index("wire_s")])
        shares = {
            "compute": float(seconds[KEYS.index("compute_s")]),
            "network": network,
            "latency": float(seconds[KEYS.index("latency_s")]),
            "memory of a host": float(seconds[KEYS.index("loopback_bytes")]),
        }
        shares["coding and overhead"] = float(seconds.sum()) - sum(shares.values())
        return max(shares, key=lambda name: shares[name])


def simulate(
    plan: SyncPlan,
    workload: Workload,
    topology: Topology,
    *,
    overheads: Overheads | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    steps: int = 0,
    slowdown: Sequence[float] = (),
) -> Simulated:
    """Predict how long training steps take under a plan. Warm-ups are over; a stretched period is at its shortest.

    Args:
        plan: What is exchanged, how, and when.
        workload: The model and its times on a rank that nothing slows down.
        topology: The ranks and the links between their hosts. A host with fewer CPUs than ranks computes slower.
        overheads: Costs of everything but the links; those of the machines that hosts name, or defaults, if None.
        bucket_bytes: DDP's buckets, where the plan does not say how large they are.
        steps: How many the makespan is of; 0 for one period of the plan.
        slowdown: Per rank, how many times longer it computes than the workload says; nothing means once.

    Raises:
        ValueError: The plan has an algorithm of the user's own, or does not fit the topology.

    """
    return run(prepare(plan, context_for(workload, topology, overheads, slowdown), bucket_bytes), steps)


def simulate_many(
    plans: Sequence[SyncPlan],
    workload: Workload,
    topology: Topology,
    *,
    overheads: Overheads | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    slowdown: Sequence[float] = (),
) -> Floats:
    """Return the step_s of many plans, (num_plans,), sharing work between them; arguments as in `simulate`."""
    return step_times(plans, context_for(workload, topology, overheads, slowdown), bucket_bytes)


def step_times(plans: Sequence[SyncPlan], context: SimulationContext, bucket_bytes: int = BUCKET_BYTES) -> Floats:
    """Return the step_s of plans, (num_plans,), with what is known of others on the same workload and topology."""
    return np.array([run(prepare(plan, context, bucket_bytes), 0, brief=True).step_s for plan in plans])


def context_for(
    workload: Workload, topology: Topology, overheads: Overheads | None, slowdown: Sequence[float]
) -> SimulationContext:
    """Return what all plans on a workload and a topology have in common."""
    num_ranks = topology.num_ranks
    given = tuple(slowdown) or (1.0,) * num_ranks
    if len(given) != num_ranks or min(given) <= 0:
        raise ValueError(
            f"slowdown has {len(given)} factors, the least {min(given)}, but the topology has {num_ranks} ranks; give "
            "one above 0 for each."
        )
    crowded = [
        max(1.0, host.num_ranks / host.cpu_share) if host.cpu_share > 0 else 1.0
        for host in topology.hosts
        for _ in range(host.num_ranks)
    ]
    factors = tuple(a * b for a, b in zip(given, crowded, strict=True))
    known = overheads or overheads_of(topology)
    return SimulationContext(workload=workload, topology=topology, overheads=known, slowdown=factors)


def run(prepared: PreparedPlan, steps: int, *, brief: bool = False) -> Simulated:
    """Simulate a prepared plan; faster without its critical path."""
    if steps < 0:
        raise ValueError(f"{steps} steps cannot be; use 1 or more, or 0 for one period.")
    period = min(prepared.period, _MOST_STEPS)
    first = 0 if prepared.settled else max(2, period)
    stepper = Stepper(prepared=prepared)
    for _ in range(first + period):
        stepper.step()
    if prepared.all_free:
        return _run_free(prepared, stepper, steps or period)
    ends_s = stepper.ends_s
    from_s = ends_s[first - 1] if first else 0.0
    skewed_s = step_with_skew_s(prepared)
    legs = [] if brief and skewed_s is None else critical_path(stepper.clock.segments, from_s, ends_s[-1])
    saved_s = 0.0 if skewed_s is None else ends_s[-1] - from_s - period * skewed_s
    legs, saved_s = _shortened(legs, saved_s)
    step_s = (ends_s[-1] - from_s - saved_s) / period
    wanted = steps or period
    known = min(wanted, len(ends_s))
    makespan_s = ends_s[known - 1] - (known - 1) * saved_s / period + (wanted - known) * step_s
    waits_s = sum(_inside(s, from_s) for s in stepper.clock.segments if s.kind == "wait") - saved_s
    counts = _counts(legs, stepper, prepared.context) / period
    per_step = _totals(stepper, first, prepared) / period
    return Simulated(
        step_s=step_s,
        makespan_s=makespan_s,
        compute_s=step_s - waits_s / period,
        exposed_s=waits_s / period,
        exchange_s=float(per_step[0]),
        codec_s=float(per_step[1]),
        sent_bytes=tuple(per_step[2:].tolist()),
        period=period,
        critical_path=_merge(legs),
        counted={key: float(count) for key, count in zip(KEYS, counts, strict=True) if count},
        prepared=prepared,
        stepper=stepper,
    )


def _run_free(prepared: PreparedPlan, stepper: Stepper, wanted: int) -> Simulated:
    """Return the result where no rank waits: each computes at its own pace, and threads exchange beside it.

    An average of all begins with a step of any rank once the one before is over; each rank asks for exchanges in pairs
    at its own steps. So the interval between two is as many whole steps of a rank as the exchange takes, or as the
    plan's period: steps of the fastest for an average, and where slower ranks follow it; else of each for its pairs.
    """
    context, overheads, workload = prepared.context, prepared.context.overheads, prepared.context.workload
    whole_s = workload.compute_s
    paces_s = whole_s * np.array(context.slowdown)  # (num_ranks,)
    period = min(mixed.part.timing.period for mixed in prepared.weights)
    every = np.full(context.num_ranks, float(period))  # steps of each rank
    if whole_s and all(mixed.follows_fastest for mixed in prepared.weights):
        every = np.ceil(period * paces_s.min() / paces_s - 1e-9)
    each = [mixed.tasks[turn % len(mixed.tasks)] for turn in range(_MOST_TURNS) for mixed in prepared.weights]
    each += [prepared.meet] * _MOST_TURNS if prepared.meet is not None else []
    exchange_s = sum(exchanged.seconds for exchanged in each) / _MOST_TURNS
    cpu_s = sum(float(exchanged.of.cpu_s[exchanged.index]) for exchanged in each) / _MOST_TURNS
    shared = context.cores.slowdown([1.0, cpu_s / exchange_s if exchange_s else 0.0])
    taken_s = exchange_s * max(overheads.exchange_overlap, shared)
    steps_between = np.maximum(every, np.ceil(taken_s / paces_s)) if whole_s else np.ones(context.num_ranks)
    cycles_s = np.maximum(paces_s * steps_between, taken_s)
    in_pairs = all(mixed.in_pairs for mixed in prepared.weights)
    cycle_s = float(1 / np.mean(1 / np.maximum(cycles_s, 1e-30)) if in_pairs else cycles_s.min())
    busy = np.minimum(1.0, taken_s / np.maximum(every * paces_s, 1e-30))
    paces_s = paces_s * (1 + (max(overheads.compute_overlap, shared) - 1) * busy)
    step_s = float(1 / np.mean(1 / np.maximum(paces_s, 1e-30)))
    per_step = step_s / cycle_s / _MOST_TURNS if cycle_s else 0.0  # of what is in `each`
    sent = per_step * sum((exchanged.of.sent[exchanged.index] for exchanged in each), np.zeros(context.num_ranks))
    return Simulated(
        step_s=step_s,
        makespan_s=wanted * float(paces_s.max()),
        compute_s=step_s,
        exposed_s=0.0,
        exchange_s=exchange_s * per_step * _MOST_TURNS,
        codec_s=per_step * sum(float(exchanged.of.codec_s[exchanged.index]) for exchanged in each),
        sent_bytes=tuple(sent.tolist()),
        period=period,
        critical_path=(("compute", step_s * period),),
        counted={"compute_s": step_s},
        prepared=prepared,
        stepper=stepper,
    )


def _inside(segment: RankActivity, from_s: float) -> float:
    return max(0.0, segment.end_s - max(segment.start_s, from_s))


def _shortened(legs: list[CriticalSegment], saved_s: float) -> tuple[list[CriticalSegment], float]:
    """Return a critical path on which exchanges take so much less, or more if that is negative; and by how much."""
    exchanged_s = sum(leg.seconds for leg in legs if leg.item is not None)
    if not saved_s or not exchanged_s:
        return legs, 0.0
    saved_s = min(saved_s, exchanged_s)
    part = 1 - saved_s / exchanged_s
    return [leg if leg.item is None else replace(leg, seconds=part * leg.seconds) for leg in legs], saved_s


def _counts(legs: Sequence[CriticalSegment], stepper: Stepper, context: SimulationContext) -> Floats:
    counts = np.zeros(len(KEYS))
    for leg in legs:
        if leg.item is None:
            counts[0] += leg.seconds
        else:
            exchanged = stepper.exchanged[leg.item.row]
            counts += exchanged.of.counts[exchanged.index] * (leg.seconds / max(exchanged.seconds, 1e-30))
    return context.at_given_overheads(counts)


def _totals(stepper: Stepper, first: int, prepared: PreparedPlan) -> Floats:
    """Return seconds of exchanges, seconds of coding, and bytes per rank, in the steps from `first` on."""
    totals = np.zeros(2 + prepared.context.num_ranks)
    uses = Counter(id(stepper.exchanged[item.row]) for item in stepper.clock.items if item.step >= first)
    known = {id(exchanged): exchanged for exchanged in stepper.exchanged}
    for key, times in uses.items():
        exchanged = known[key]
        totals[0] += times * exchanged.seconds
        totals[1] += times * exchanged.of.codec_s[exchanged.index]
        totals[2:] += times * exchanged.of.sent[exchanged.index]
    return totals


def _merge(legs: Sequence[CriticalSegment]) -> tuple[tuple[str, float], ...]:
    merged: list[tuple[str, float]] = []
    for leg in legs:
        if merged and merged[-1][0] == leg.name:
            merged[-1] = leg.name, merged[-1][1] + leg.seconds
        else:
            merged.append((leg.name, leg.seconds))
    return tuple(merged)
