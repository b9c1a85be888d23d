"""First look at the links: the messages that training has sent itself, and streams from each host."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pliant.comm import Comm, broadcast_text
from pliant.comm.small_gather import gather_small
from pliant.netmodel import Overheads
from pliant.network.cores import count_cpus
from pliant.network.inference import (
    Matrix,
    Pair,
    have_own_paths,
    more_usual,
    odd_streams,
    rates_by_hosts,
    round_robin_pairs,
    split_into_rounds,
    topology_from,
)
from pliant.network.probing import least_stream_s, provenance_of
from pliant.network.rack_inference import has_changed, infer_racks, near_groups, rounds_between, within_racks
from pliant.network.rank_facts import starts_slowly
from pliant.network.rank_places import ask_hosts, ranks_of_hosts
from pliant.network.streams import half_trips_s, measure_throughput
from pliant.spec import Topology, from_json, to_json
from pliant.spec.units import format_bytes

__all__ = ["LinkView", "look_at_links", "own_rate"]

_LEAST_BYTES = 1_000_000
"""What a rank must have sent in the steps that are looked at: less is mostly latency."""
_TRIPS_S = 0.02
_MOST_SHIFTS = 5
"""Rounds of streams where hosts are not even: up to six hosts all pairs are seen."""
_EVEN = 1.25
"""Ratio of the fastest stream to the slowest, and of a stream to the messages, up to which rates are one rate."""
_LATENCY_SHARE = 0.1
_SECOND_LOOKS = 2


def own_rate(comm: Comm, sent_bytes: float, busy_s: float) -> float:
    """Return the rate at which a ring of all ranks has carried messages, headers included, in bytes per s. Collective.

    In a ring all ranks send as much, and the slowest link decides. The rank that waited least for others counts.

    Args:
        comm: Ranks.
        sent_bytes: Payload that this rank sent.
        busy_s: Time for which its communication thread was busy with it.

    Returns:
        The same on all ranks; 0 if a rank sent less than 1 MB.

    """
    enough = sent_bytes >= _LEAST_BYTES and busy_s > 0
    mine = torch.tensor([sent_bytes / busy_s if enough else 0.0, 0.0 if enough else 1.0], dtype=torch.float64)
    rate, lacking = gather_small(comm, mine).amax(0).tolist()
    return 0.0 if lacking else rate * Overheads().wire_factor


@dataclass(frozen=True, kw_only=True)
class LinkView:
    """Hosts and links after a first look."""

    topology: Topology
    is_complete: bool
    """Whether hosts are even, or all pairs were seen, so that a probe would tell little more."""


def look_at_links(
    comm: Comm,
    rate: float,
    busy_s: float,
    message_s: float,
    connections: int,
    hosts: Sequence[Sequence[int]] | None = None,
) -> LinkView | None:
    """Return the hosts, with rates from the messages of training, or from streams. Collective.

    Each two hosts exchange a few round trips, and each host sends a stream to the one before it, all at once, as Gloo's
    ring does. Where streams differ by at most a quarter, hosts are even, and have one rate: that of training's messages
    where these have filled the links, or else that of the slowest stream. They have not where a stream is faster by
    more than a quarter, and where latency was more than a tenth of a message's time. Where hosts are not even, each
    sends to others in turn, in up to five rounds: up to six hosts these are all pairs. Groups of hosts between which
    streams share one rate are racks (`infer_racks`); where groups show, but no rate that they share, the
    round of most streams between groups has a second try, and if any of its streams has changed, all rounds have, which
    tells. Else streams that limits of hosts do not explain have one, if they are few, in up to
    two rounds. Then hosts have the rates of their own best streams, and slower pairs a link; where a quarter of the
    pairs are slower, each has a path of its own, and hosts carry as much as all their pairs together. Pairs without a
    stream have the rates of their hosts.

    Args:
        comm: Ranks, over Gloo.
        rate: From `own_rate`, in bytes per s.
        busy_s: Time that one message of this rank took in training, in s.
        message_s: Cost of a small message, in s.
        connections: Connections between each two ranks.
        hosts: Ranks of each host; those of each machine if None.

    Returns:
        The same on all ranks; None where all are on one host.

    """
    names, places = ranks_of_hosts(comm, hosts)
    if len(places) == 1:
        return None
    counts = [len(ranks) for ranks in places]

    def view(between: Comm) -> str:
        found, is_complete = _look(between, names, counts, rate, busy_s, message_s, connections)
        return json.dumps([to_json(found), is_complete])

    told, is_complete = json.loads(ask_hosts(comm, places, max(1, connections), view))
    topology = replace(from_json(Topology, told), num_cpus=count_cpus(comm), restarts_slowly=starts_slowly(comm))
    return LinkView(topology=topology, is_complete=is_complete)


def _look(
    comm: Comm,
    names: Sequence[str],
    num_ranks: Sequence[int],
    rate: float,
    busy_s: float,
    message_s: float,
    connections: int,
) -> tuple[Topology, bool]:
    """Return the topology, and whether it is complete: the same on all ranks of a comm of one rank a host."""
    size, rank = comm.size, comm.rank
    latencies_s = half_trips_s(comm, round_robin_pairs(size), _TRIPS_S, message_s)
    stream_s = least_stream_s(latencies_s)

    def streams(ways: Sequence[Pair]) -> Matrix:
        """Return the rates of (source, target), (hosts, hosts), all at once."""
        targets, sources = ([way[1 - k] for way in ways if way[k] == rank] for k in (0, 1))
        came = measure_throughput(comm, targets, sources, stream_s)
        mine = torch.zeros(size, dtype=torch.float64)
        for source, bytes_per_s in came.items():
            mine[source] = bytes_per_s * Overheads().wire_factor
        return gather_small(comm, mine).numpy().T

    def shifted(shift: int) -> Matrix:
        """Return the rates from each host to the one so many before it."""
        return streams([((k + shift) % size, k) for k in range(size)])

    alone, shifts, racks = shifted(1), [1], ()
    seen = alone[alone > 0]
    is_even, is_full = float(seen.max()) <= _EVEN * float(seen.min()), False
    if is_even:
        shortest_s = float(gather_small(comm, torch.tensor([busy_s], dtype=torch.float64)).min())
        is_long = float(np.nanmax(latencies_s)) <= _LATENCY_SHARE * shortest_s
        is_full = is_long and float(seen.max()) <= _EVEN * rate
        alone = np.where(np.eye(size, dtype=bool), 0.0, rate if is_full else float(seen.min()))
    else:
        shifts = np.unique(np.linspace(1, size - 1, min(size - 1, _MOST_SHIFTS)).round().astype(int)).tolist()
        alone = np.max([alone, *map(shifted, shifts[1:])], axis=0)
        racks, usual = infer_racks(names, alone, least=rate), rates_by_hosts(alone)
        odd = [] if racks else odd_streams(alone, usual)  # streams of racks change with each other
        groups = [] if racks else near_groups(alone)
        order, odd = _told(comm, [rounds_between(groups, shifts) if groups else [], odd])
        if order and _told(comm, has_changed(alone, again := shifted(order[0]), groups)):
            racks = infer_racks(names, alone, np.max([again, *map(shifted, order[1:])], axis=0), least=rate)
            odd = _told(comm, [] if racks else odd)
        for ways in split_into_rounds([(i, j) for i, j in odd], _SECOND_LOOKS):
            alone = more_usual(alone, streams(ways), usual)
    slowest = format_bytes(float(alone[alone > 0].min()))
    told = "in the messages of training" if is_full else "at least"
    what = f"{slowest}/s {told}, {len(shifts)} times {size} streams of {stream_s:.2g} s"
    provenance = provenance_of("pliant auto over gloo", f"{sum(num_ranks)} ranks on {size} hosts", what)
    alone = within_racks(alone) if racks else alone
    crowd = alone if not racks and have_own_paths(alone[None], alone) else None
    topology = topology_from(names, num_ranks, alone[None], alone, latencies_s, provenance, crowd)
    topology = replace(topology, racks=racks, connections=max(1, connections))
    return topology, is_even or len(shifts) == size - 1


def _told(comm: Comm, finding: Any) -> Any:
    """Return what the first rank has found, which others may not: processors differ in the last bit of a logarithm."""
    return json.loads(broadcast_text(json.dumps(finding), comm))
