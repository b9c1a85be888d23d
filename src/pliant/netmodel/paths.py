"""Paths of a round's messages, and the time that they lose while TCP's windows open."""

from collections.abc import Sequence

import numpy as np

from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.loads import Paths
from pliant.netmodel.messages import Floats, Ints
from pliant.netmodel.slow_start import slow_start_s
from pliant.spec.slices import SLICE_BYTES

__all__ = ["all_pairs", "all_to_all", "connections_of", "host_pairs", "lost_s"]


def connections_of(num_bytes: Floats, flows: Floats, most: int) -> Floats:
    """Return how many connections messages take: one for each slice, as in `comm.striping`.

    Args:
        num_bytes: Bytes of all messages of a path; of a ring those of the whole vector, whose slices go all around.
        flows: Pairs of ranks between which they go, broadcast.
        most: Connections that each two ranks have.

    """
    each = np.divide(num_bytes, flows, out=np.zeros(np.broadcast(num_bytes, flows).shape), where=flows > 0)
    return flows * np.clip(np.ceil(each / SLICE_BYTES), 1, most)


def host_pairs(
    links: Interfaces, pairs: Ints, num_bytes: Floats, flows: Floats, *, ring_blocks: int = 1, asks: bool = False
) -> Paths:
    """Return the paths between hosts.

    Args:
        links: The network.
        pairs: (num_paths,) source times the number of hosts, plus target; each once.
        num_bytes: (num_buckets, num_paths)
        flows: Pairs of ranks that communicate, likewise, or (1, num_paths).
        ring_blocks: Blocks of the vector that goes around, of which each message is one.
        asks: Whether a message leaves once its receiver has told that it waits.

    """
    connections = connections_of(ring_blocks * num_bytes, flows, links.topology.connections)
    source, target = np.divmod(pairs, links.num_hosts)
    there_s, back_s = links.delay_s[target], links.delay_s[source]
    columns = [source, links.num_hosts + target]
    first = 2 * links.num_hosts
    if num_racks := len(links.up_s):
        gives, takes = links.rack_of[source], links.rack_of[target]
        crossing = gives != takes
        columns += [np.where(crossing, first + gives, source), np.where(crossing, first + num_racks + takes, source)]
    if len(links.link_s):
        there_s, back_s = links.delays_s[source, target], links.delays_s[target, source]
        own = links.link_source * links.num_hosts + links.link_target  # sorted
        at = np.minimum(np.searchsorted(own, pairs), len(own) - 1)
        columns.append(np.where(own[at] == pairs, first + 2 * num_racks + at, source))
    return Paths(
        columns=np.stack(columns, axis=1),
        num_bytes=num_bytes,
        trip_s=(there_s + back_s)[None],
        delay_s=(there_s + asks * back_s)[None] * (ring_blocks == 1),
        connections=connections,
    )


def all_pairs(links: Interfaces, num_bytes: Floats, flows: Floats, *, asks: bool) -> Paths:
    """Return the paths between all hosts, of (num_buckets, num_hosts, num_hosts) bytes and pairs of ranks."""
    apart = np.flatnonzero(~np.eye(links.num_hosts, dtype=bool))
    num_bytes, flows = (x.reshape(len(x), -1)[:, apart] for x in (num_bytes, flows))
    return host_pairs(links, apart, num_bytes, flows, asks=asks)


def all_to_all(
    links: Interfaces, out: tuple[Floats, Floats, Floats], into: tuple[Floats, Floats, Floats], *, asks: bool
) -> tuple[Paths, Paths]:
    """Return the paths of messages between all hosts at once: all that leave a host as one, and all that reach it.

    So n hosts need 2 n paths and not n^2, and nothing is lost where the links have no figures of their own.

    Args:
        links: The network.
        out: Bytes out of each host, (num_buckets, num_hosts), pairs of ranks, and the longest delay of those it sends
            to.
        into: Likewise bytes into it, pairs of ranks, and the longest delay of those that send to it.
        asks: See `host_pairs`.

    """
    hosts, num_racks = np.arange(links.num_hosts), len(links.up_s)
    racks = 2 * links.num_hosts + links.rack_of if num_racks else hosts
    columns = (
        np.stack([hosts, racks], axis=1),
        np.stack([links.num_hosts + hosts, racks + num_racks if num_racks else links.num_hosts + hosts], axis=1),
    )
    delays_s = out[2] + asks * links.delay_s, links.delay_s + asks * into[2]
    found = [
        Paths(
            columns=which,
            num_bytes=num_bytes,
            trip_s=links.delay_s + far_s,
            delay_s=delay_s,
            connections=connections_of(num_bytes, flows, links.topology.connections),
        )
        for which, (num_bytes, flows, far_s), delay_s in zip(columns, (out, into), delays_s, strict=True)
    ]
    return found[0], found[1]


def lost_s(links: Interfaces, paths: Sequence[Paths], times: Floats, last_s: Floats, pause_s: float) -> Floats:
    """Return how much longer a round takes, (num_buckets,), while windows open.

    A path takes as long as what is busiest on it, and slow start at the rate that this leaves it.

    Args:
        links: The network.
        paths: All on which there are messages.
        times: (num_buckets, num_interfaces): seconds of each interface, uplink and link.
        last_s: (num_buckets,): when the last message arrives if windows are open.
        pause_s: See `slow_start_s`.

    """
    topology, lost = links.topology, np.zeros(len(times))
    for each in paths:
        busy_s = times[:, each.columns[:, 0]]
        for column in each.columns.T[1:]:
            busy_s = np.maximum(busy_s, times[:, column])
        limited = (busy_s > 0) & (each.num_bytes > 0)
        rates = np.divide(each.num_bytes, busy_s, out=np.full(busy_s.shape, np.inf), where=limited)
        start_s = slow_start_s(
            each.num_bytes,
            rates,
            each.trip_s,
            connections=each.connections,
            pause_s=pause_s if topology.restarts_slowly else 0.0,
            initial_bytes=links.overheads.initial_window_bytes,
            window_bytes=topology.window_bytes or np.inf,
        )
        arrives_s = np.where(each.num_bytes > 0, busy_s + start_s + each.delay_s, 0.0)
        lost = np.maximum(lost, arrives_s.max(axis=1, initial=0.0) - last_s)
    return lost
