"""Choice of the number of connections between two ranks: as many as pay on the longest links, and some to spare."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch

from pliant.comm import Comm, broadcast_text
from pliant.comm.striping import MAX_CONNECTIONS, ConnectionChoice
from pliant.netmodel import Floats, Ints
from pliant.netmodel.slow_start import halvings
from pliant.network.inference import Matrix, Pair, round_robin_pairs, split_into_rounds
from pliant.network.parallel_streams import measure_connections
from pliant.network.rank_places import ranks_of_hosts, require_gloo
from pliant.network.streams import half_trips_s
from pliant.spec.units import format_rate, format_time

__all__ = ["choose_between_hosts", "choose_connections", "with_spare"]

_LEAST_TRIP_S = 0.002
"""A round trip below which a window of one connection fills any link there is."""
_LEAST_GAIN = 1.1
"""Gain from twice as many connections at which they pay."""
_SPARE = 2
"""Connections for each one that pays: after a long pause they start a round trip sooner."""
_LEAST_PAUSE_TRIPS = 2.0
"""Round trips between two messages in lock-step: an answer, and the receiver's word before the next one."""
_LEAST_S, _LEAST_TRIPS = 1.0, 40
"""Length of a measurement: a connection carries what it can after some sixteen round trips of slow start."""
_TRIP_LIMIT_S, _MOST_ROUNDS = 0.2, 8


def choose_connections(comm: Comm, *, hosts: Sequence[Sequence[int]] | None = None) -> ConnectionChoice:
    """Measure how many connections between two ranks pay; the same on all ranks. Collective.

    One rank of each host takes part. It takes no time where round trips are below 2 ms, and else up to six measurements
    of a second, or of 40 round trips.

    Args:
        comm: Ranks, over Gloo.
        hosts: Ranks of each host; where None, ranks that see one network of one machine are on one host.

    Raises:
        ValueError: The comm is not over Gloo.

    """
    require_gloo(comm)
    names, places = ranks_of_hosts(comm, hosts, in_order=False)
    leaders = comm.split([[ranks[0] for ranks in places]], 1)
    text = ""
    if leaders is not None:
        try:
            rounds = round_robin_pairs(len(places))
            rounds = rounds[:: -(-len(rounds) // _MOST_ROUNDS)]
            choice = choose_between_hosts(leaders, names, half_trips_s(leaders, rounds, _TRIP_LIMIT_S))
            text = json.dumps(asdict(choice))
        finally:
            leaders.close()
    return ConnectionChoice(**json.loads(broadcast_text(text, comm)))


def choose_between_hosts(comm: Comm, names: Sequence[str], latencies_s: Matrix) -> ConnectionChoice:
    """Double the number of connections until the sum of their rates rises by less than a tenth. Collective.

    Measured are disjoint pairs of hosts, those with the longest round trips first, all at once and both ways. The
    number counts as long as it pays for any of them, since all pairs of a group have the same.

    The choice is twice the last number that paid, at most 32. After a pause each connection starts slowly again, and
    twice as many are there a round trip sooner (measured: 61 % instead of 53 % of a link of 1 Gbit/s at 100 ms).

    Messages in lock-step are two round trips apart at least, for the answer and the receiver's next word. On round
    trips above 200 ms Linux halves windows for such a pause. So every message finds them halved, and the number doubles
    once more. Measured at 300 Mbit/s and 250 ms were pauses of 0.5 to 2.5 s, and time-outs of 0.46 s.

    Args:
        comm: Ranks, one of each host, with one connection between each two.
        names: Names of the hosts.
        latencies_s: Half of the round trip between two hosts, symmetric (hosts, hosts); NaN where not measured.

    """
    if comm.size == 1:
        return ConnectionChoice(why="one connection: all ranks are on one host")
    known = [(i, j) for i in range(comm.size) for j in range(i + 1, comm.size) if np.isfinite(latencies_s[i, j])]
    longest_first = sorted(known, key=lambda pair: -latencies_s[pair])
    trip_s = 2 * float(latencies_s[longest_first[0]])
    if trip_s < _LEAST_TRIP_S:
        return ConnectionChoice(why=f"one connection: round trips take at most {format_time(trip_s)}")
    (pairs,) = split_into_rounds(longest_first, 1)
    duration_s = max(_LEAST_S, _LEAST_TRIPS * trip_s)
    count, rates = 1, {1: _rates(comm, pairs, 1, duration_s)}
    paid = np.ones(len(pairs), dtype=np.int64)  # the last number that paid for each pair
    while 2 * count <= MAX_CONNECTIONS:
        rates[2 * count] = _rates(comm, pairs, 2 * count, duration_s)
        pays = rates[2 * count] >= _LEAST_GAIN * rates[count]
        if not pays.any():
            break
        count *= 2
        paid[pays] = count
    trips_s = np.array([2 * float(latencies_s[pair]) for pair in pairs])
    wanted = with_spare(paid, trips_s)
    shown = int(np.lexsort((rates[count] / rates[1], wanted))[-1])
    i, j = pairs[shown]
    carried = ", ".join(f"{count}: {format_rate(float(each[shown]) / 2)}" for count, each in rates.items())
    return ConnectionChoice(
        connections=int(wanted[shown]),
        why=f"{_reason(int(paid[shown]), int(wanted[shown]))}; {names[i]} to {names[j]}, round trip "
        f"{format_time(trips_s[shown])}, carries with so many connections {carried}",
    )


def with_spare(paid: Ints, trips_s: Floats) -> Ints:
    """Return the connections for windows that pauses have halved, from the last numbers that paid.

    Args:
        paid: Connections that pay while data flows, (pairs,).
        trips_s: Round trips, likewise.

    """
    lock_step = halvings(_LEAST_PAUSE_TRIPS * trips_s, trips_s).astype(np.int64)
    return np.where(paid > 1, np.minimum(paid * _SPARE * 2**lock_step, MAX_CONNECTIONS), 1)


def _reason(paid: int, wanted: int) -> str:
    if wanted == 1:
        return "one connection, since two do not pay"
    return f"{wanted} connections, since {paid} pay, and more of them start sooner after a pause"


def _rates(comm: Comm, pairs: Sequence[Pair], connections: int, duration_s: float) -> Matrix:
    """Return the bytes per second of each pair, (pairs,), both ways together, over so many new connections."""
    streams = comm.split([list(range(comm.size))], connections)
    if streams is None:
        raise RuntimeError("a group of all ranks was made without this one.")
    found = torch.zeros(len(pairs), dtype=torch.float64)
    try:
        for k, pair in enumerate(pairs):
            if comm.rank in pair:
                found[k] = measure_connections(comm, streams, sum(pair) - comm.rank, duration_s)
    finally:
        streams.close()
    comm.all_reduce(found).wait()
    return found.numpy()
