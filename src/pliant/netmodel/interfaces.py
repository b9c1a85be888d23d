"""Rates and delays of a topology's hosts, racks and links, as arrays."""

from functools import cached_property

import numpy as np

from pliant.netmodel.messages import Floats
from pliant.netmodel.overheads import Overheads
from pliant.spec import Topology

__all__ = ["Interfaces"]


class Interfaces:
    """Everything of a topology that has a rate or a delay.

    Args:
        topology: Hosts, racks and links.
        overheads: What everything beside them takes; defaults if None.

    """

    def __init__(self, topology: Topology, overheads: Overheads | None = None) -> None:
        hosts = topology.hosts
        self.topology, self.num_ranks, self.num_hosts = topology, topology.num_ranks, len(hosts)
        self.overheads = overheads if overheads is not None else Overheads()
        self.sizes = np.array([host.num_ranks for host in hosts])  # (num_hosts,)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])  # (num_hosts,) first rank of each
        self.host_of = np.repeat(np.arange(len(hosts)), self.sizes)  # (num_ranks,)
        self.out_s = np.array([_per_byte(host.send_bytes_per_s) for host in hosts])  # (num_hosts,) seconds per byte
        self.in_s = np.array([_per_byte(host.receive_bytes_per_s) for host in hosts])
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
    def delays_s(self) -> Floats:
        """One-way delay from host to host, (num_hosts, num_hosts); 0 to itself."""
        delays_s = np.tile(self.delay_s, (self.num_hosts, 1)) * (1 - np.eye(self.num_hosts))
        delays_s[self.link_source, self.link_target] = self.link_latency_s
        return delays_s


def _per_byte(bytes_per_s: float) -> float:
    return 1 / bytes_per_s if bytes_per_s > 0 else 0.0
