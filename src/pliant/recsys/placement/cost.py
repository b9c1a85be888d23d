"""Time of a step: what it moves over a topology's links, and what it does at the rates of a machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links, PointToPoint, RankMatrix, RoundTime, in_turn_s
from pliant.recsys.placement.rates import Rates
from pliant.recsys.placement.traffic import PHASES, STAGES, Traffic

__all__ = ["StepCost", "all_reduce_time", "step_cost"]

Floats = npt.NDArray[np.float64]

HIDDEN = ("prepare", "sizes", "request")
"""What prefetching the next batch moves beside the dense part of this one."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A step, stage by stage and phase by phase; they follow one another, but for what is hidden."""

    parts_s: tuple[tuple[str, float], ...]
    """In order: ('prepare', 1e-3), ('sizes', ...), ..., ('dense', ...), ('sync', ...), ('step', ...)"""
    hidden_s: float
    """Of those, beside the dense part, because the batch was prefetched."""
    wire_s: float
    """Of those, links and delays."""
    features: tuple[float, ...]
    """(9,), which times the rates to be fitted are what links, delays and the dense part leave of the step: the counts
    of the busiest rank of each stage, summed, then lookups, messages, and 1."""

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return sum(s for _, s in self.parts_s) - self.hidden_s

    def part_s(self, name: str) -> float:
        """Return the time of one stage or phase."""
        return dict(self.parts_s)[name]


def all_reduce_time(num_bytes: float, links: Links, *, hierarchical: bool) -> tuple[float, float]:
    """Return seconds on links and delays of an all-reduce of so many bytes, and the messages that a rank handles.

    Args:
        num_bytes: Of the vector.
        links: Of the ranks.
        hierarchical: Whether ranks of a host sum first around a ring of their own, then the first ranks of hosts, which
            broadcast the result, as `HierarchicalComm` does.

    """
    ranks = np.arange(links.num_ranks)
    if not hierarchical:
        return _added([(_ring([ranks], num_bytes), 2 * (links.num_ranks - 1))], links)
    hosts = [np.array(links.topology.ranks_of(k)) for k in range(links.num_hosts)]
    first = np.array([own[0] for own in hosts])
    others = np.setdiff1d(ranks, first)
    down = PointToPoint(
        source=first[links.host_of[others]],
        target=others,
        share=np.full(len(others), num_bytes),
        num_bytes=np.ones(1),
    )
    longest = 2 * (int(links.sizes.max()) - 1)
    return _added(
        [(_ring(hosts, num_bytes), longest), (_ring([first], num_bytes), 2 * (len(first) - 1)), (down, 1)], links
    )


def _ring(groups: Sequence[npt.NDArray[np.int64]], num_bytes: float) -> PointToPoint:
    """Return a round of an all-reduce around a ring in each group of ranks, all of as many rounds as the longest."""
    longest = max(len(group) for group in groups)
    rings = [group for group in groups if len(group) > 1]
    shares = [np.full(len(ring), (len(ring) - 1) / len(ring) / (longest - 1) * num_bytes) for ring in rings]
    none = np.zeros(0)
    return PointToPoint(
        source=np.concatenate([*rings, none]).astype(np.int64),
        target=np.concatenate([*(np.roll(ring, -1) for ring in rings), none]).astype(np.int64),
        share=np.concatenate([*shares, none]),
        num_bytes=np.ones(1),
        cyclic=len(rings) == 1,
    )


def _added(rounds: Sequence[tuple[PointToPoint, int]], links: Links) -> tuple[float, float]:
    found = [links.load(messages, repeat) for messages, repeat in rounds if repeat and len(messages.source)]
    return (
        sum(float(took.busy_s[0] + took.latency_s[0]) for took in found),
        sum(float(took.num_messages[0]) for took in found),
    )


def step_cost(traffic: Traffic, links: Links, rates: Rates, *, dense_s: float = 0.0, overlap: bool = False) -> StepCost:
    """Predict the time of a step.

    A phase takes as long as the busiest link, the longest delay in use and the messages of the busiest rank; a stage as
    long as the rank with the most work; they follow one another, because each needs what the one before brought.
    Ranks that share CPUs (`Topology.num_cpus`) take at least as long as all their work does on these. Gradients come
    after the dense part, during which TCP's windows close on long links, and open them for what follows.

    Args:
        traffic: What the step moves and does, counted or expected.
        links: Of as many ranks, with the overheads of the rates.
        rates: Of the machine.
        dense_s: Time of everything else in the step.
        overlap: Whether the next batch's ids are prepared and requested beside the dense part.

    Raises:
        ValueError: The topology has another number of ranks.

    """
    if links.num_ranks != traffic.num_ranks:
        raise ValueError(f"the plan is for {traffic.num_ranks} ranks, but the topology has {links.num_ranks}.")
    crowd = links.topology.ranks_per_cpu
    shared = _with_shares(traffic.work, crowd)  # (stages, counts, ranks + 1)
    busiest = (shared * rates.counts_s[:, None]).sum(axis=1)  # (stages, ranks + 1)
    at = busiest.argmax(axis=1)
    stages = dict(zip(STAGES, busiest.max(axis=1).tolist(), strict=True))
    counts = sum((shared[k, :, rank] for k, rank in enumerate(at)), np.zeros(rates.counts_s.size))
    exchanged = RankMatrix(num_bytes=traffic.num_bytes, num_messages=traffic.num_messages)
    took = links.load(exchanged, pause_s=max(dense_s, links.overheads.pause_s))
    wires = took.busy_s + took.latency_s + _starts_s(took)  # (phases,)
    messages = traffic.num_messages.sum(axis=-1) + traffic.num_messages.sum(axis=-2)  # (phases, ranks)
    handled = _with_shares(messages, crowd).max(axis=-1)  # (phases,)
    phases = dict(zip(PHASES, (wires + handled * links.overheads.message_s).tolist(), strict=True))
    lookups = crowd * traffic.num_lookups
    sync_wire_s = sync_messages = 0.0
    for sync in traffic.syncs:
        for num_bytes in sync.message_bytes:
            wire_s, each_rank = all_reduce_time(num_bytes, links, hierarchical=traffic.hierarchical)
            sync_wire_s += traffic.sync_share * wire_s
            sync_messages += traffic.sync_share * each_rank * crowd
    sync_s = stages["sync"] + sync_wire_s + sync_messages * links.overheads.message_s
    parts = (
        ("prepare", stages["prepare"]),
        ("sizes", phases["sizes"]),
        ("request", phases["request"]),
        ("serve", stages["serve"]),
        ("answer", phases["answer"]),
        ("pool", stages["pool"]),
        ("dense", dense_s),
        ("back", stages["back"]),
        ("gradients", phases["gradients"]),
        ("update", stages["update"]),
        ("sync", sync_s),
        ("step", rates.step_s + lookups * rates.lookup_s),
    )
    ahead_s = sum(s for name, s in parts if name in HIDDEN)
    return StepCost(
        parts_s=parts,
        hidden_s=min(ahead_s, dense_s) if overlap else 0.0,
        wire_s=float(wires.sum()) + sync_wire_s,
        features=(*counts.tolist(), lookups, float(handled.sum()) + sync_messages, 1.0),
    )


def _starts_s(took: RoundTime) -> Floats:
    """Return what slow start adds to each phase, (phases,): gradients pay first, and open windows for the next step."""
    first = PHASES.index("gradients")
    return np.roll(in_turn_s(np.roll(took.start_s, -first)), first)


def _with_shares(work: Floats, ranks_per_cpu: float) -> Floats:
    """Return work (..., ranks) with one more column: a CPU's share of that of all ranks."""
    return np.concatenate([work, work.mean(axis=-1, keepdims=True) * ranks_per_cpu], axis=-1)
