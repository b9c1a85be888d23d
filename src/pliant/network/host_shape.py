"""Rates, delays, jitters and losses of one host's link, and of its pairs with others: what a topology asks for."""

from dataclasses import dataclass

from pliant.spec import Link, Topology

__all__ = ["HostShape", "Incoming", "Outgoing", "delays_s", "host_shapes", "link_table"]


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """Traffic from a host to one other."""

    target: int
    """Index of the host that receives."""
    bytes_per_s: float
    """0: only the host's own rate limits it."""
    round_trip_s: float
    """Delays of both ways together."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """Traffic that arrives at a host from one other."""

    source: int
    """Index of the host that sends."""
    delay_s: float
    jitter_s: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class HostShape:
    """Rates, delays, jitters and losses that are shaped at one host."""

    send_bytes_per_s: float
    """0: not limited."""
    receive_bytes_per_s: float
    """0: not limited."""
    delay_s: float
    """Of what arrives from hosts that `incoming` does not name."""
    round_trip_s: float
    """Longest one to any other host."""
    outgoing: tuple[Outgoing, ...] = ()
    incoming: tuple[Incoming, ...] = ()

    @property
    def is_late(self) -> bool:
        """Whether any packet that arrives is delayed or lost."""
        return bool(self.delay_s) or any(i.delay_s or i.jitter_s or i.loss for i in self.incoming)


def link_table(topology: Topology) -> dict[tuple[int, int], Link]:
    """Return the links of a topology by the indices of their hosts, ordered."""
    index = {host.name: k for k, host in enumerate(topology.hosts)}
    found = {(index[link.source], index[link.target]): link for link in topology.links}
    return dict(sorted(found.items(), key=lambda item: item[0]))


def delays_s(topology: Topology) -> list[list[float]]:
    """Return one-way delays, [source][target]: of the link where there is one, of the receiving host otherwise."""
    num = len(topology.hosts)
    found = [[host.delay_s if a != b else 0.0 for b, host in enumerate(topology.hosts)] for a in range(num)]
    for (a, b), link in link_table(topology).items():
        found[a][b] = link.latency_s
    return found


def host_shapes(topology: Topology) -> list[HostShape]:
    """Return what is shaped at each host."""
    links, delay_s = link_table(topology), delays_s(topology)
    num = range(len(topology.hosts))
    outgoing: list[list[Outgoing]] = [[] for _ in num]
    incoming: list[list[Incoming]] = [[] for _ in num]
    for (a, b), link in links.items():
        round_trip_s = delay_s[a][b] + delay_s[b][a]
        outgoing[a].append(Outgoing(target=b, bytes_per_s=link.bytes_per_s, round_trip_s=round_trip_s))
        incoming[b].append(Incoming(source=a, delay_s=link.latency_s, jitter_s=link.jitter_s, loss=link.loss))
    return [
        HostShape(
            send_bytes_per_s=host.send_bytes_per_s,
            receive_bytes_per_s=host.receive_bytes_per_s,
            delay_s=host.delay_s,
            round_trip_s=max(delay_s[k][j] + delay_s[j][k] for j in num),
            outgoing=tuple(outgoing[k]),
            incoming=tuple(incoming[k]),
        )
        for k, host in enumerate(topology.hosts)
    ]
