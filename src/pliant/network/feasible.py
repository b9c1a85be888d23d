"""Limits of what one machine can emulate: beyond them a topology is refused, or warned of, before anything is made."""

import math
import os
from collections.abc import Iterator

from pliant.network.addresses import MAX_HOSTS
from pliant.network.host_shape import link_table
from pliant.network.shaping import HELD_PACKETS
from pliant.spec import Topology
from pliant.spec.units import format_rate, format_time

__all__ = ["asked_bytes_per_s", "carried_bytes_per_s", "require_possible", "too_much"]

_PER_CORE = 125e6  # bytes/s: 1 Gbit/s, measured with ranks that compute beside it (docs/emulate.md)
_LEAST = 1e3  # bytes/s: a packet would take more than a second
_PACKET_BYTES = 1514
_MAX_HELD = 1 << 17  # delay_relay.c


def require_possible(topology: Topology) -> None:
    """Raise ValueError for a topology that cannot be emulated on any machine; the message names what is wrong."""
    if len(topology.hosts) > MAX_HOSTS:
        raise ValueError(
            f"the topology has {len(topology.hosts)} hosts, but at most {MAX_HOSTS} can be emulated; leave some out."
        )
    for what, rate in _rates(topology):
        if 0 < rate < _LEAST:
            raise ValueError(
                f"{what} has {format_rate(rate)}, at which a packet takes longer than a second, so that connections "
                f"give up; give at least {format_rate(_LEAST)} (--scale makes rates smaller)."
            )
    for what, rate, late_s, most in _lines(topology):
        held = rate * late_s / _PACKET_BYTES
        if held > most:
            raise ValueError(
                f"{what} has {format_rate(rate)} and {format_time(late_s)}, and so {held:.0f} packets on their way, "
                f"but at most {most} can be held; scale its rate down (--scale)."
            )


def _lines(topology: Topology) -> Iterator[tuple[str, float, float, int]]:
    """Yield what is late, its rate, 0 if nothing limits it, how late it is, and how many packets can be held for it."""
    hosts = {host.name: host for host in topology.hosts}
    for link in topology.links:
        rates = link.bytes_per_s, hosts[link.source].send_bytes_per_s, hosts[link.target].receive_bytes_per_s
        late_s = link.latency_s + link.jitter_s
        yield f"the link from {link.source} to {link.target}", min(filter(None, rates), default=0.0), late_s, _MAX_HELD
    linked = {(link.source, link.target) for link in topology.links}
    for host in topology.hosts:
        sent = [h.send_bytes_per_s for h in topology.hosts if h is not host and (h.name, host.name) not in linked]
        rates = host.receive_bytes_per_s, sum(sent) if all(sent) else 0.0
        yield f"{host.name} in", min(filter(None, rates), default=0.0) if sent else 0.0, host.delay_s, HELD_PACKETS


def _rates(topology: Topology) -> Iterator[tuple[str, float]]:
    for place in (*topology.hosts, *topology.racks):
        yield f"{place.name} out", place.send_bytes_per_s
        yield f"{place.name} in", place.receive_bytes_per_s
    for link in topology.links:
        yield f"the link from {link.source} to {link.target}", link.bytes_per_s


def asked_bytes_per_s(topology: Topology) -> float:
    """Return what all hosts can send at once, as far as rates limit it: hosts without any are left out."""
    num, links = len(topology.hosts), link_table(topology)
    ways = [[0.0] * num, [0.0] * num]  # by who sends, by who receives
    for k, host in enumerate(topology.hosts):
        for side, own in ((0, host.send_bytes_per_s), (1, host.receive_bytes_per_s)):
            pairs = [links[ends].bytes_per_s if ends in links else 0.0 for ends in _pairs(k, side, num)]
            limits = [rate for rate in (own, sum(pairs) if all(pairs) else 0.0) if rate]
            ways[side][k] = min(limits, default=math.inf)
    sums = [sum(rate for rate in way if rate < math.inf) for way in ways]
    whole = [total for total, way in zip(sums, ways, strict=True) if math.inf not in way]
    return min(whole) if whole else max(sums)


def _pairs(k: int, side: int, num: int) -> list[tuple[int, int]]:
    return [(k, j) if side == 0 else (j, k) for j in range(num) if j != k]


def carried_bytes_per_s() -> float:
    """Return what this machine can carry in all while ranks compute."""
    return _PER_CORE * (os.cpu_count() or 1)


def too_much(topology: Topology) -> str:
    """Return a sentence if the rates together are more than this machine carries; empty otherwise."""
    asked, carried = asked_bytes_per_s(topology), carried_bytes_per_s()
    if asked <= carried:
        return ""
    return (
        f"the hosts can send {format_rate(asked)} at once, but {os.cpu_count()} cores carry some "
        f"{format_rate(carried)} beside computing; where all send, give smaller rates (--scale {carried / asked:.1g})."
    )
