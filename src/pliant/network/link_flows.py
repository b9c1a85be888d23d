"""Flows by which links are checked: between whom, at what rate, over how many connections, and which at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pliant.network.feasible import carried_bytes_per_s
from pliant.network.host_shape import delays_s, link_table
from pliant.spec import Topology

__all__ = ["Flow", "expected_bytes_per_s", "flow_groups", "num_connections", "ring_of", "uplink_flows"]

_WINDOW_BYTES = 1.5e6
"""Bytes that one TCP connection surely has on its way with Linux's default buffers; 2.7 MB were measured."""
_MAX_CONNECTIONS = 32
_SPARE = 1.5
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Traffic from one host to another while links are checked."""

    source: int
    target: int
    bytes_per_s: float
    """Rate that its hosts, link and racks leave it; 0: not limited."""
    round_trip_s: float
    jitter_s: float
    """Of both ways together."""
    window_bytes: float = _WINDOW_BYTES
    """Bytes that one connection surely has on its way."""

    @property
    def connections(self) -> int:
        """Number of TCP connections that fill the link."""
        return num_connections(self.bytes_per_s, self.round_trip_s + self.jitter_s, self.window_bytes)


def num_connections(bytes_per_s: float, round_trip_s: float, window_bytes: float = _WINDOW_BYTES) -> int:
    """Return how many connections are opened: so many windows as are on their way, and half as many more."""
    return min(max(math.ceil(_SPARE * bytes_per_s * round_trip_s / window_bytes), 1), _MAX_CONNECTIONS)


def expected_bytes_per_s(*rates: float) -> float:
    """Return the least of the rates on a flow's way; 0 means not limited."""
    return min((rate for rate in rates if rate), default=0.0)


class _Rates:
    """Flows of a topology, with the rates on their ways."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.links, self.delay_s = topology, link_table(topology), delays_s(topology)
        self.rack_of = topology.rack_of()

    def flow(self, a: int, b: int, *, across: bool = True) -> Flow:
        """Return the flow between two hosts, `across` the uplinks of their racks as well."""
        hosts, racks = self.topology.hosts, self.topology.racks
        rates = [hosts[a].send_bytes_per_s, hosts[b].receive_bytes_per_s]
        if (a, b) in self.links:
            rates.append(self.links[a, b].bytes_per_s)
        if across and racks and self.rack_of[a] != self.rack_of[b]:
            rates += [racks[self.rack_of[a]].send_bytes_per_s, racks[self.rack_of[b]].receive_bytes_per_s]
        ways = [self.links[ends] for ends in ((a, b), (b, a)) if ends in self.links]
        return Flow(
            source=a,
            target=b,
            bytes_per_s=expected_bytes_per_s(*rates),
            round_trip_s=self.delay_s[a][b] + self.delay_s[b][a],
            jitter_s=sum(link.jitter_s for link in ways),
            window_bytes=min(self.topology.window_bytes or _WINDOW_BYTES, _WINDOW_BYTES),
        )

    def limits(self, flow: Flow) -> dict[tuple[str, int], float]:
        """Return what the flow has a share of, with the rate that all its flows together may have."""
        a, b = flow.source, flow.target
        hosts, racks = self.topology.hosts, self.topology.racks
        found = {("out", a): hosts[a].send_bytes_per_s, ("in", b): hosts[b].receive_bytes_per_s}
        if racks and self.rack_of[a] != self.rack_of[b]:
            up, down = self.rack_of[a], self.rack_of[b]
            found |= {("up", up): racks[up].send_bytes_per_s, ("down", down): racks[down].receive_bytes_per_s}
        return {**found, ("machine", 0): carried_bytes_per_s()}


def ring_of(members: Sequence[int]) -> list[tuple[int, int]]:
    """Return each one with the next, the last with the first; nothing for one alone."""
    return [(a, members[(i + 1) % len(members)]) for i, a in enumerate(members)] if len(members) > 1 else []


def flow_groups(topology: Topology) -> list[list[Flow]]:
    """Return flows that show each host's link and each link of a pair; those of one group run at the same time.

    First each host to the next, in a ring, or inside its rack. Then the other links: those without limits, and then as
    many at once as hosts, racks and the machine can carry at their full rates, with similar round trips together.
    """
    rates = _Rates(topology)
    members = sorted(range(len(topology.hosts)), key=lambda k: rates.rack_of[k])
    rings = [ring_of(list(group)) for _, group in groupby(members, key=lambda k: rates.rack_of[k])]
    first = [rates.flow(a, b) for ring in rings for a, b in ring]
    shown = {(flow.source, flow.target) for flow in first}
    others = [rates.flow(a, b) for a, b in rates.links if (a, b) not in shown]
    filled: list[_Group] = []
    for flow in sorted(others, key=lambda flow: -flow.round_trip_s):
        if flow.bytes_per_s and not any(group.takes(flow, rates.limits(flow)) for group in filled):
            filled.append(_Group())
            filled[-1].takes(flow, rates.limits(flow))
    found = [first, [flow for flow in others if not flow.bytes_per_s], *(group.flows for group in filled)]
    return [group for group in found if group]


@dataclass(frozen=True)
class _Group:
    """Flows that run at the same time, and their sums in what they share."""

    flows: list[Flow] = field(default_factory=list[Flow])
    taken: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

    def takes(self, flow: Flow, limits: Mapping[tuple[str, int], float]) -> bool:
        """Add a flow if all limits leave it its rate, or if it is the first to meet them; say whether."""
        for what, limit in limits.items():
            if what in self.taken and limit and self.taken[what] + flow.bytes_per_s > limit * _ROUNDING:
                return False
        for what in limits:
            self.taken[what] = self.taken.get(what, 0.0) + flow.bytes_per_s
        self.flows.append(flow)
        return True


def uplink_flows(topology: Topology) -> list[list[Flow]]:
    """Return, for each rack, flows of some of its hosts to those of the next rack: as many as fill the fastest uplink.

    Or as many as the smallest rack has hosts; no more, since they never begin quite at once.
    """
    rates = _Rates(topology)
    groups = [[k for k, rack in enumerate(rates.rack_of) if rack == g] for g in range(len(topology.racks))]
    if len(groups) < 2:
        return []
    rows = [
        [rates.flow(a, b, across=False) for a, b in ring_of(members)] for members in zip(*groups, strict=False)
    ]  # one flow of each rack
    fastest = max(max(rack.send_bytes_per_s, rack.receive_bytes_per_s) for rack in topology.racks)
    slowest = min((flow.bytes_per_s for row in rows for flow in row if flow.bytes_per_s), default=math.inf)
    rows = rows[: max(1, math.ceil(fastest / slowest))]
    return [[row[g] for row in rows] for g in range(len(groups))]
