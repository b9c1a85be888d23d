"""Rates of links from the messages that training has sent itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from pliant.comm import Comm, broadcast_text, duplicate
from pliant.netmodel import Overheads
from pliant.network.cores import count_cpus
from pliant.network.inference import round_robin_pairs, topology_from
from pliant.network.probing import provenance_of
from pliant.network.rank_facts import starts_slowly
from pliant.network.rank_places import ranks_of_hosts
from pliant.network.streams import gather_numbers, half_trips_s, measure_throughput
from pliant.spec import Topology, from_json, to_json
from pliant.spec.units import format_bytes

__all__ = ["own_rate", "topology_of_messages"]

_LEAST_BYTES = 1_000_000
"""What a rank must have sent in the steps that are looked at: less is mostly latency."""
_STREAM_S, _TRIPS_S = 0.3, 0.02
_EVEN = 1.25
"""Ratio of the fastest stream to the slowest, and of a stream to the messages, up to which rates are one rate."""
_LATENCY_SHARE = 0.1


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
    worst = torch.tensor([sent_bytes / busy_s if enough else 0.0, 0.0 if enough else 1.0], dtype=torch.float64)
    comm.all_reduce(worst, "max").wait()
    rate, lacking = worst.tolist()
    return 0.0 if lacking else rate * Overheads().wire_factor


def topology_of_messages(
    comm: Comm, rate: float, message_s: float, connections: int, hosts: Sequence[Sequence[int]] | None = None
) -> Topology | None:
    """Return the hosts with one rate for all, if the messages of training say enough. Collective.

    One stream of 0.3 s goes from each host to the next at the same time, which shows whether hosts are even; and each
    two hosts exchange a few round trips. A probe is needed where streams differ by more than a quarter. So it is where
    they are faster than the messages of training by more than that, since these then did not fill the links. And it is
    where latency was more than a tenth of a message's time.

    Args:
        comm: Ranks, over Gloo.
        rate: From `own_rate`, in bytes per s.
        message_s: Time that one message of this rank took, in s.
        connections: Connections between each two ranks.
        hosts: Ranks of each host; those of each machine if None.

    Returns:
        The same on all ranks; None where a probe is needed, or where all ranks are on one host.

    """
    names, places = ranks_of_hosts(comm, hosts)
    if len(places) == 1 or rate <= 0:
        return None
    leaders = comm.split([[ranks[0] for ranks in places]], 1)
    text = ""
    if leaders is not None:
        try:
            found = _look(leaders, names, [len(ranks) for ranks in places], rate, message_s, connections)
            text = "" if found is None else to_json(found)
        finally:
            leaders.close()
    text = broadcast_text(text, comm)
    if not text:
        return None
    return replace(from_json(Topology, text), num_cpus=count_cpus(comm), restarts_slowly=starts_slowly(comm))


def _look(
    comm: Comm, names: Sequence[str], num_ranks: Sequence[int], rate: float, message_s: float, connections: int
) -> Topology | None:
    """Return the topology, or None where a probe is needed: the same on all ranks of a comm of one rank a host."""
    size, rank = comm.size, comm.rank
    latencies_s = half_trips_s(comm, round_robin_pairs(size), _TRIPS_S)
    answers = duplicate(comm, max(1, connections))
    try:
        source = (rank - 1) % size
        came = measure_throughput(comm, answers, [(rank + 1) % size], [source], _STREAM_S)[source]
    finally:
        answers.close()
    mine = torch.tensor([came * Overheads().wire_factor, message_s], dtype=torch.float64)
    streams, messages_s = gather_numbers(comm, mine).T
    is_even = float(streams.max()) <= _EVEN * float(streams.min())
    is_full = float(streams.max()) <= _EVEN * rate
    is_long = float(np.nanmax(latencies_s)) <= _LATENCY_SHARE * float(messages_s.min())
    if not (is_even and is_full and is_long):
        return None
    rates = np.where(np.eye(size, dtype=bool), 0.0, rate)[None]  # (1, hosts, hosts)
    what = f"{format_bytes(rate)}/s in the messages of training, {size} streams of {_STREAM_S:g} s"
    provenance = provenance_of("pliant auto over gloo", f"{sum(num_ranks)} ranks on {size} hosts", what)
    found = topology_from(names, num_ranks, rates, rates[0], latencies_s, provenance)
    return replace(found, connections=max(1, connections))
