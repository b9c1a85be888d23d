"""Bandwidths of ranks on a topology, after which owners may hold larger or smaller parts."""

import math

from pliant.spec import Topology

__all__ = ["rank_bandwidths"]


def rank_bandwidths(topology: Topology) -> tuple[float, ...]:
    """Return each rank's part of its host's slowest rate, as multiples of the least; empty if all are alike.

    A host without any limit counts as the fastest that has one.

    >>> from pliant.spec import Host
    >>> rank_bandwidths(Topology(hosts=(Host(name="a", send_bytes_per_s=2e7), Host(name="b", send_bytes_per_s=1e7))))
    (2.0, 1.0)

    """
    limits: list[float] = []
    for host in topology.hosts:
        links = [link.bytes_per_s for link in topology.links if host.name in (link.source, link.target)]
        limits.append(min([rate for rate in (host.send_bytes_per_s, host.receive_bytes_per_s, *links) if rate] or [0]))
    fastest = max(limits)
    shares = [
        (rate or fastest) / host.num_ranks
        for rate, host in zip(limits, topology.hosts, strict=True)
        for _ in range(host.num_ranks)
    ]
    least = min(shares)
    if not least or math.isclose(max(shares), least, rel_tol=0.05):
        return ()
    return tuple(round(share / least, 2) for share in shares)
