"""Time of a step: what it moves over a topology's links, and what it does at the rates of a machine."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.recsys.rates import Rates
from pliant.recsys.traffic import PHASES, STAGES, Traffic, sync_pairs
from pliant.schedules.cost import Overheads, Prices
from pliant.spec import Topology

__all__ = ["Network", "StepCost", "step_cost"]

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


class Network:
    """A topology as what takes time: ranks of a host share its interface, hosts of a rack the uplink."""

    def __init__(self, topology: Topology, rates: Rates) -> None:
        overheads = Overheads(wire_factor=rates.wire_factor)
        prices = Prices(topology, overheads)
        self.topology, self.num_ranks = topology, topology.num_ranks
        self.sizes = np.array([host.num_ranks for host in topology.hosts])  # (hosts,)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self.out_s, self.in_s = np.array(prices.out_s), np.array(prices.in_s)
        self.rack_of = np.array(prices.rack_of)
        self.up_s, self.down_s = np.array(prices.up_s), np.array(prices.down_s)
        self.links = prices.links
        self.inside_s = 1 / rates.memory_bytes_per_s
        num = len(self.sizes)
        self.delays_s = np.tile(np.array(prices.delay_s), (num, 1)) * (1 - np.eye(num))  # (from, to)
        for (a, b), (_, latency_s) in prices.links.items():
            self.delays_s[a, b] = latency_s
        self.hosts = [topology.ranks_of(k) for k in range(num)]

    def by_host(self, pairs: Floats) -> Floats:
        """Sum (..., ranks, ranks) to (..., hosts, hosts)."""
        return np.add.reduceat(np.add.reduceat(pairs, self.starts, axis=-1), self.starts, axis=-2)

    def seconds(self, hosts: Floats) -> Floats:
        """Return how long bytes (..., hosts, hosts) take: the busiest of all that they share."""
        inside = np.diagonal(hosts, axis1=-2, axis2=-1)
        out, into = hosts.sum(axis=-1) - inside, hosts.sum(axis=-2) - inside
        found = np.maximum((out * self.out_s).max(axis=-1), (into * self.in_s).max(axis=-1))
        found = np.maximum(found, inside.max(axis=-1) * self.inside_s)
        for (a, b), (per_byte_s, _) in self.links.items():
            found = np.maximum(found, hosts[..., a, b] * per_byte_s)
        if self.up_s.size:
            member = (self.rack_of[:, None] == np.arange(self.up_s.size)).astype(np.float64)  # (hosts, racks)
            racks = member.T @ hosts @ member
            own = np.diagonal(racks, axis1=-2, axis2=-1)
            found = np.maximum(found, ((racks.sum(axis=-1) - own) * self.up_s).max(axis=-1))
            found = np.maximum(found, ((racks.sum(axis=-2) - own) * self.down_s).max(axis=-1))
        return found

    def sync(self, num_bytes: float, *, hierarchical: bool) -> tuple[float, float]:
        """Return seconds on links and delays of an all-reduce, and the messages that its busiest rank handles."""
        if self.num_ranks == 1:
            return 0.0, 0.0
        hosts = self.hosts if hierarchical else None
        wire_s = float(self.seconds(self.by_host(sync_pairs(num_bytes, self.num_ranks, hosts))))
        num_hosts, rounds = len(self.sizes), 2 * (self.num_ranks - 1)
        delay_s = float(self.delays_s.max(initial=0.0)) if num_hosts > 1 else 0.0
        messages = 2.0 * rounds
        if hierarchical:
            rounds = 2 * (num_hosts - 1)
            messages = 2.0 * rounds + 2.0 * (int(self.sizes.max()) - 1)
        # A ring waits in each round for the slowest hop.
        return wire_s + rounds * delay_s, messages


def step_cost(
    traffic: Traffic, network: Network, rates: Rates, *, dense_s: float = 0.0, overlap: bool = False
) -> StepCost:
    """Predict the time of a step.

    A phase takes as long as the busiest link, the longest delay in use and the messages of the busiest rank; a stage as
    long as the rank with the most work; they follow one another, because each needs what the one before brought.
    Ranks that share cores take at least as long as all their work does on these.

    Args:
        traffic: What the step moves and does, counted or expected.
        network: Of as many ranks.
        rates: Of the machine.
        dense_s: Time of everything else in the step.
        overlap: Whether the next batch's ids are prepared and requested beside the dense part.

    Raises:
        ValueError: The topology has another number of ranks.

    """
    if network.num_ranks != traffic.num_ranks:
        raise ValueError(f"the plan is for {traffic.num_ranks} ranks, but the topology has {network.num_ranks}.")
    cores = rates.shared_cores or network.num_ranks
    shared = _with_shares(traffic.work, cores)  # (stages, counts, ranks + 1)
    busiest = (shared * rates.counts_s[:, None]).sum(axis=1)  # (stages, ranks + 1)
    at = busiest.argmax(axis=1)
    stages = dict(zip(STAGES, busiest.max(axis=1).tolist(), strict=True))
    counts = sum((shared[k, :, rank] for k, rank in enumerate(at)), np.zeros(rates.counts_s.size))
    hosts = network.by_host(traffic.num_bytes)
    wires = network.seconds(hosts)
    used = network.by_host(traffic.num_messages)
    wires = wires + (np.minimum(used, 1.0) * network.delays_s).max(axis=(-2, -1))
    messages = traffic.num_messages.sum(axis=-1) + traffic.num_messages.sum(axis=-2)  # (phases, ranks)
    handled = _with_shares(messages, cores).max(axis=-1)  # (phases,)
    phases = dict(zip(PHASES, (wires + handled * rates.message_s).tolist(), strict=True))
    crowd = rates.crowd(network.num_ranks)
    lookups = crowd * traffic.num_lookups
    sync_wire_s = sync_messages = 0.0
    for sync in traffic.syncs:
        for num_bytes in (sync.num_rows, 4 * sync.dim * sync.num_touched):
            wire_s, each_rank = network.sync(num_bytes, hierarchical=traffic.hierarchical)
            sync_wire_s += traffic.sync_share * wire_s
            sync_messages += traffic.sync_share * each_rank * crowd
    sync_s = stages["sync"] + sync_wire_s + sync_messages * rates.message_s
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


def _with_shares(work: Floats, cores: int) -> Floats:
    """Return work (..., ranks) with one more column: a core's share of that of all ranks."""
    return np.concatenate([work, work.sum(axis=-1, keepdims=True) / cores], axis=-1)
