"""Topologies: hosts and racks, with the rates and delays between them."""

import math
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pliant.spec.plain import LATER

__all__ = ["Host", "Link", "Rack", "Topology"]

_MOST_RANKS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine: its ranks and its connection to the network."""

    name: str
    num_ranks: int = 1
    send_bytes_per_s: float = 0.0
    """Rate of the link out of the host, headers of TCP/IP included; 0 means not limited."""
    receive_bytes_per_s: float = 0.0
    """Rate of the link into the host, likewise; 0 means not limited."""
    delay_s: float = 0.0
    """Extra one-way delay of everything that the host receives."""
    cpu_share: float = 0.0
    """CPUs that its processes may use in all; 0 means not limited."""
    machine: str = field(default="", metadata=LATER)
    """Name of a preset, such as `h100`, whose links inside, interfaces and speeds it has; empty: not said."""

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise ValueError(f"host {self.name!r} has {self.num_ranks} ranks; it needs at least one.")
        if not _sensible(self.send_bytes_per_s, self.receive_bytes_per_s, self.delay_s, self.cpu_share):
            raise ValueError(
                f"host {self.name!r} has a negative rate, delay or CPU share, or one that is not finite; 0 means not "
                "limited."
            )


@dataclass(frozen=True, kw_only=True)
class Link:
    """Measured or required connection from one host to another, where it differs from the hosts' own rates.

    Emulated hosts have all four figures. Predictions leave jitter and loss out: a message of many packets is as late as
    the latest, and what a loss costs depends on the congestion control.
    """

    source: str
    target: str
    bytes_per_s: float
    """Rate of this direction, headers of TCP/IP included; 0 means that only the hosts limit it."""
    latency_s: float
    """One-way delay of this direction, in the place of the receiving host's."""
    jitter_s: float = field(default=0.0, metadata=LATER)
    """Longest further delay of a packet: each draws its own, evenly from 0 to this. Packets keep their order."""
    loss: float = field(default=0.0, metadata=LATER)
    """Share of the packets that are lost, each by itself."""

    def __post_init__(self) -> None:
        where = f"the link from {self.source!r} to {self.target!r}"
        if not _sensible(self.bytes_per_s, self.latency_s, self.jitter_s):
            raise ValueError(
                f"{where} has {self.bytes_per_s:g} bytes/s, {self.latency_s:g} s and a jitter of {self.jitter_s:g} s; "
                "all must be finite and at least 0."
            )
        if not 0 <= self.loss < 1:
            raise ValueError(f"{where} loses {self.loss:g} of its packets; that must be at least 0 and less than 1.")


@dataclass(frozen=True, kw_only=True)
class Rack:
    """Hosts behind one switch, which share its uplink for all traffic with hosts of other racks."""

    name: str
    hosts: tuple[str, ...]
    """Names of its hosts."""
    send_bytes_per_s: float = 0.0
    """Rate out of the rack; 0 means not limited."""
    receive_bytes_per_s: float = 0.0
    """Rate into the rack; 0 means not limited."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError(f"rack {self.name!r} has no hosts; it needs at least one.")
        if not _sensible(self.send_bytes_per_s, self.receive_bytes_per_s):
            raise ValueError(f"rack {self.name!r} has a negative rate, or one not finite; 0 means not limited.")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hosts in the order of their ranks: host 0 holds ranks 0..num_ranks-1, and so on.

    >>> hosts = tuple(Host(name=name, num_ranks=2, send_bytes_per_s=1.25e8) for name in ("a", "b"))
    >>> Topology(hosts=hosts).num_ranks
    4
    """

    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    provenance: str = ""
    """Where the figures come from: 'given', or the command and time of a measurement."""
    racks: tuple[Rack, ...] = field(default=(), metadata=LATER)
    """Either none, or racks such that each host is in one."""
    num_cpus: float = field(default=0.0, metadata=LATER)
    """CPUs that all ranks have together; emulated hosts have those of one machine. 0: not known, and enough."""
    connections: int = field(default=1, metadata=LATER)
    """Connections between each two ranks with which the rates were measured, and which training needs to have them."""
    window_bytes: float = field(default=0.0, metadata=LATER)
    """Most payload that a connection has on its way, which its sockets' buffers set; 0: the rates allow for it."""
    restarts_slowly: bool = field(default=True, metadata=LATER)
    """Whether TCP starts slowly again after a pause (net.ipv4.tcp_slow_start_after_idle)."""

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if not names:
            raise ValueError("a topology needs at least one host.")
        if self.num_ranks > _MOST_RANKS:
            raise ValueError(f"the topology has {self.num_ranks} ranks, but at most {_MOST_RANKS} are thought of.")
        if len(set(names)) != len(names):
            raise ValueError(f"two hosts have the same name among {', '.join(names)}; names must differ.")
        self._require_links(names)
        if not _sensible(self.window_bytes):
            raise ValueError(
                f"the topology has windows of {self.window_bytes:g} bytes; that must be finite, and 0 or more."
            )
        if not _sensible(self.num_cpus):
            raise ValueError(f"the topology has {self.num_cpus:g} CPUs; there must be at least 0, and finitely many.")
        if self.connections < 1:
            raise ValueError(f"the topology has {self.connections} connections between two ranks; give at least 1.")
        if self.racks:
            self._require_racks(names)

    def _require_links(self, names: list[str]) -> None:
        known, pairs = set(names), set[tuple[str, str]]()
        for link in self.links:
            pair = link.source, link.target
            for end in pair:
                if end not in known:
                    raise ValueError(f"a link names the host {end!r}, but the hosts are {', '.join(names)}.")
            if link.source == link.target:
                raise ValueError(f"the topology has a link from {link.source!r} to itself; leave it out.")
            if pair in pairs:
                raise ValueError(f"the topology has two links from {link.source!r} to {link.target!r}; leave one.")
            pairs.add(pair)

    def _require_racks(self, names: list[str]) -> None:
        racks = [rack.name for rack in self.racks]
        if len(set(racks)) != len(racks):
            raise ValueError(f"two racks have the same name among {', '.join(racks)}; names must differ.")
        inside = [name for rack in self.racks for name in rack.hosts]
        if sorted(inside) != sorted(names):
            raise ValueError(
                f"the racks hold {', '.join(sorted(inside))}, but the hosts are {', '.join(sorted(names))}; if there "
                "are racks, each host must be in exactly one."
            )

    @property
    def brief(self) -> str:
        """Number of its hosts, such as "4 hosts"."""
        return f"{len(self.hosts)} hosts"

    @property
    def num_ranks(self) -> int:
        """Ranks on all hosts."""
        return sum(host.num_ranks for host in self.hosts)

    @property
    def ranks_per_cpu(self) -> float:
        """Number of ranks that share a CPU, at least 1: so much longer takes what all of them compute at once.

        Work of exchanges is meant. Computing was observed with all ranks running.
        """
        return max(1.0, self.num_ranks / self.num_cpus) if self.num_cpus else 1.0

    @property
    def cpus_per_rank(self) -> float:
        """Number of CPUs that each rank has for all its threads, where it has the fewest; infinite if not limited."""
        machine = [self.num_cpus / self.num_ranks] if self.num_cpus else []
        limits = [host.cpu_share / host.num_ranks for host in self.hosts if host.cpu_share]
        return min([*machine, *limits], default=math.inf)

    def ranks_of(self, host_index: int) -> range:
        """Return the global ranks of a host."""
        first = sum(host.num_ranks for host in self.hosts[:host_index])
        return range(first, first + self.hosts[host_index].num_ranks)

    @property
    def one_rank_each(self) -> "Topology":
        """The same network with one rank on each host."""
        return replace(self, hosts=tuple(replace(host, num_ranks=1) for host in self.hosts))

    def rack_of(self) -> tuple[int, ...]:
        """Return the index of each host's rack; all 0 without racks."""
        rack = {name: k for k, rack in enumerate(self.racks) for name in rack.hosts}
        return tuple(rack.get(host.name, 0) for host in self.hosts)

    def scaled(self, factor: float) -> "Topology":
        """Return the same topology with all its rates times a factor; delays, jitters and losses stay.

        Raises:
            ValueError: The factor is not a positive number.

        """
        if not 0 < factor < math.inf:
            raise ValueError(f"rates cannot be scaled by {factor:g}; give a positive number, such as 0.1.")

        def slower(place: _Place) -> _Place:
            send, receive = place.send_bytes_per_s * factor, place.receive_bytes_per_s * factor
            return replace(place, send_bytes_per_s=send, receive_bytes_per_s=receive)

        return replace(
            self,
            hosts=tuple(map(slower, self.hosts)),
            racks=tuple(map(slower, self.racks)),
            links=tuple(replace(link, bytes_per_s=link.bytes_per_s * factor) for link in self.links),
        )


_Place = TypeVar("_Place", Host, Rack)


def _sensible(*figures: float) -> bool:
    return all(0 <= figure < math.inf for figure in figures)
