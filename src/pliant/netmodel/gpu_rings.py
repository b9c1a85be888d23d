"""Rings as NCCL makes them, over the links of a topology: its latencies, its trees, and its windows."""

from dataclasses import replace

import numpy as np

from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.messages import Floats, Messages, PointToPoint, Together
from pliant.netmodel.nccl import choose_collective
from pliant.netmodel.own_interface import bytes_outside
from pliant.netmodel.round_time import RoundTime

__all__ = ["by_nccl"]


def by_nccl(found: RoundTime, messages: Messages, repeat: int, links: Interfaces) -> RoundTime | None:
    """Return the time of a collective of NCCL in the place of that of a ring's rounds; None if it is none.

    The ring's bytes take as long as on the links, and wait for their windows (`_windows_s`): what NCCL adds is latency,
    and what it may choose is a tree. Messages cost nothing of their own, since the GPU hands them on.

    Args:
        found: The time of the rounds of a ring.
        messages: Of one round; those of rings side by side are `Together`.
        repeat: Number of rounds.
        links: The network.

    """
    rings = messages.parts if isinstance(messages, Together) else (messages,)
    if not all(isinstance(ring, PointToPoint) and ring.ring_ranks > 1 for ring in rings):
        return None
    pairs = [ring for ring in rings if isinstance(ring, PointToPoint)]
    first = pairs[0]
    num_ranks = first.ring_ranks
    all_reduce = repeat == 2 * (num_ranks - 1)
    sizes = np.max([ring.num_bytes for ring in pairs], axis=0) * (1 if all_reduce else num_ranks)
    hosts = len(np.unique(links.host_of[first.source[:num_ranks]]))  # of the first ring
    windows_s = np.max([_windows_s(ring, repeat, links) for ring in pairs], axis=0)
    rate_s = found.rate_s + windows_s / links.overheads.wire_factor
    if hosts == num_ranks and links.own_s.any():  # one rank of each host, whose interface it is
        out, _ = bytes_outside(messages, links)
        rate_s = np.maximum(rate_s, repeat * (out * links.own_s[links.host_of]).max(axis=1))
    ring_s = np.maximum(rate_s * links.overheads.wire_factor, found.loopback_s)
    chosen = choose_collective(sizes, ring_s, num_ranks, hosts, links.overheads.nccl, all_reduce=all_reduce)
    return replace(
        found,
        rate_s=rate_s * chosen.factor,
        loopback_bytes=found.loopback_bytes * chosen.factor,
        latency_s=np.where(sizes > 0, chosen.latency_s, 0.0) + chosen.delays * found.latency_s,
        num_messages=np.zeros_like(found.num_messages),
    )


def _windows_s(ring: PointToPoint, repeat: int, links: Interfaces) -> Floats:
    """Return the time in which a ring's connections wait for acknowledgements, (num_buckets,): a round trip a window.

    NCCL takes its buffers back when the next GPU has them whole, so that sending and waiting follow one another.
    """
    topology = links.topology
    source, target = links.host_of[ring.source], links.host_of[ring.target]
    outside = source != target
    if not topology.window_bytes or not outside.any():
        return np.zeros(len(ring.num_bytes))
    source, target = source[outside], target[outside]
    trips_s = links.delay_s[source] + links.delay_s[target]
    if len(links.link_s):
        trips_s = links.delays_s[source, target] + links.delays_s[target, source]
    slowest = float((ring.share[outside] * trips_s).max())
    return repeat * slowest * ring.num_bytes / (topology.connections * topology.window_bytes)
