"""Rates and delays of a topology's hosts, racks and links, as arrays."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel.messages import Floats
from pliant.netmodel.overheads import Overheads
from pliant.netmodel.presets import machine_of, overheads_of
from pliant.spec import Host, Machine, Topology

__all__ = ["Interfaces"]


class Interfaces:
    """Everything of a topology that has a rate or a delay.

    Args:
        topology: Hosts, racks and links.
        overheads: What everything beside them takes; if None, what the hosts' machines take, or the defaults.

    """

    def __init__(self, topology: Topology, overheads: Overheads | None = None) -> None:
        hosts = topology.hosts
        self.topology, self.num_ranks, self.num_hosts = topology, topology.num_ranks, len(hosts)
        self.overheads = overheads if overheads is not None else overheads_of(topology)
        self.sizes = np.array([host.num_ranks for host in hosts])  # (num_hosts,)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])  # (num_hosts,) first rank of each
        self.host_of = np.repeat(np.arange(len(hosts)), self.sizes)  # (num_ranks,)
        machines = [machine_of(host.machine) if host.machine else None for host in hosts]
        pairs = list(zip(hosts, machines, strict=True))
        self.out_s = np.array([_per_byte(_carried(h.send_bytes_per_s, m)) for h, m in pairs])  # (num_hosts,) s per byte
        self.in_s = np.array([_per_byte(_carried(h.receive_bytes_per_s, m)) for h, m in pairs])
        self.own_s = np.array([_own_s(h, m) for h, m in pairs])  # (num_hosts,) of the interface of one rank
        inside = [m.inside_bytes_per_s if m is not None else 0.0 for m in machines]
        known = self.overheads.loopback_bytes_per_s
        self.inside_factor = np.array([known / rate if rate else 1.0 for rate in inside])  # (num_hosts,)
        self.delay_s = np.array([host.delay_s for host in hosts])
        self.rack_of = np.array(topology.rack_of(), dtype=np.int64)  # (num_hosts,)
        self.up_s = np.array([_per_byte(rack.send_bytes_per_s) for rack in topology.racks])  # (num_racks,)
        self.down_s = np.array([_per_byte(rack.receive_bytes_per_s) for rack in topology.racks])
        index = {host.name: k for k, host in enumerate(hosts)}
        links = sorted(topology.links, key=lambda link: (index[link.source], index[link.target]))
        self.link_source = np.array([index[link.source] for link in links], dtype=np.int64)  # (num_links,)
        self.link_target = np.array([index[link.target] for link in links], dtype=np.int64)
        self.link_s = np.array([_per_byte(link.bytes_per_s) for link in links])
        self.link_latency_s = np.array([link.latency_s for link in links])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of hosts' interfaces, racks' and links: "host0 out", "rack1 up", "host0 -> host2", ..."""
        hosts = [host.name for host in self.topology.hosts]
        racks = [rack.name for rack in self.topology.racks]
        pairs = zip(self.link_source, self.link_target, strict=True)
        return (
            *(f"{name} {way}" for way in ("out", "in") for name in hosts),
            *(f"{name} {way}" for way in ("up", "down") for name in racks),
            *(f"{hosts[a]} -> {hosts[b]}" for a, b in pairs),
        )

    @cached_property
    def delays_s(self) -> Floats:
        """One-way delay from host to host, (num_hosts, num_hosts); 0 to itself."""
        delays_s = np.tile(self.delay_s, (self.num_hosts, 1)) * (1 - np.eye(self.num_hosts))
        delays_s[self.link_source, self.link_target] = self.link_latency_s
        return delays_s

    def per_host(self, x: "Floats | NDArray[np.bool_]") -> Floats:
        """Sum (num_buckets, num_ranks) to (num_buckets, num_hosts)."""
        return np.add.reduceat(x.astype(np.float64), self.starts, axis=1)

    def by_host(self, pairs: Floats) -> Floats:
        """Sum (..., num_ranks, num_ranks) to (..., num_hosts, num_hosts)."""
        return np.add.reduceat(np.add.reduceat(pairs, self.starts, axis=-1), self.starts, axis=-2)


def _per_byte(bytes_per_s: float) -> float:
    return 1 / bytes_per_s if bytes_per_s > 0 else 0.0


def _carried(bytes_per_s: float, machine: Machine | None) -> float:
    """Return the rate of a host's link that is used: what is written, up to what its machine's transport reaches."""
    reached = machine.transport_bytes_per_s if machine is not None else 0.0
    return min(bytes_per_s, reached) if bytes_per_s and reached else bytes_per_s or reached


def _own_s(host: Host, machine: Machine | None) -> float:
    """Return the seconds per byte of the one interface that a rank has to itself; 0 where a host has but one."""
    if machine is None or machine.nics < 2 or not machine.nic_bytes_per_s:
        return 0.0
    share = machine.transport_efficiency * machine.nic_bytes_per_s
    return 1 / min(share, host.send_bytes_per_s / machine.nics or share)
