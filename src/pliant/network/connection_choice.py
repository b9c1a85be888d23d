"""Choice of the number of connections between two ranks: as many as pay on the longest links, and some to spare."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
import torch

from pliant.comm import Comm
from pliant.comm.small_gather import gather_small
from pliant.comm.striping import MAX_CONNECTIONS, ConnectionChoice
from pliant.netmodel import Floats, Ints
from pliant.netmodel.slow_start import halvings
from pliant.network.inference import Matrix, Pair, round_robin_pairs, split_into_rounds
from pliant.network.parallel_streams import End, measure_connections
from pliant.network.rank_places import ask_hosts, ranks_of_hosts, require_gloo
from pliant.network.streams import half_trips_s
from pliant.spec.units import format_rate, format_time

__all__ = ["choose_between_hosts", "choose_connections", "with_spare"]

_LEAST_TRIP_S = 0.002
"""A round trip below which a window of one connection fills any link there is."""
_LEAST_GAIN = 1.3
"""Gain from more connections at which they pay: of two streams of half a second over one link one carries up to a
quarter more than the other."""
_SPARE = 2
"""Connections for each one that pays: after a long pause they start a round trip sooner."""
_LEAST_PAUSE_TRIPS = 2.0
"""Round trips between two messages in lock-step: an answer, and the receiver's word before the next one."""
_LEAST_S, _LEAST_TRIPS = 0.5, 40
"""Length of a measurement: a connection carries what it can after some sixteen round trips of slow start."""
_TRIP_LIMIT_S, _MOST_ROUNDS = 0.05, 8


def choose_connections(comm: Comm, *, hosts: Sequence[Sequence[int]] | None = None) -> ConnectionChoice:
    """Measure how many connections between two ranks pay; the same on all ranks. Collective.

    One rank of each host takes part. It takes no time where round trips are below 2 ms, and else two or three
    measurements of half a second, or of 40 round trips, and at most seven.

    Args:
        comm: Ranks, over Gloo.
        hosts: Ranks of each host; where None, ranks that see one network of one machine are on one host.

    Raises:
        ValueError: The comm is not over Gloo.

    """
    require_gloo(comm)
    names, places = ranks_of_hosts(comm, hosts, in_order=False)
    rounds = round_robin_pairs(len(places))
    rounds = rounds[:: -(-len(rounds) // _MOST_ROUNDS)]

    def choice(between: Comm) -> str:
        latencies_s = half_trips_s(between, rounds, _TRIP_LIMIT_S, each_s=0.0)  # a message is short beside 2 ms
        return json.dumps(asdict(choose_between_hosts(between, names, latencies_s)))

    return ConnectionChoice(**json.loads(ask_hosts(comm, places, 1, choice)))


def choose_between_hosts(comm: Comm, names: Sequence[str], latencies_s: Matrix) -> ConnectionChoice:
    """Find the fewest connections to which more would add less than 30 % of their rate. Collective.

    Measured are disjoint pairs of hosts, those with the longest round trips first, all at once and both ways. First
    32 connections and one, which has a second try if more seem to pay. Then the least power of two that carries enough
    if each carries what one does, and more as long as they do not. All pairs of a group have the same number, which is
    that of the pair that needs most.

    The choice is twice the number that pays, at most 32. After a pause each connection starts slowly again, and
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
    with _streams(comm, pairs, max(_LEAST_S, _LEAST_TRIPS * trip_s)) as rates_over:
        # All first: behind a shaper slow start loses packets, and TCP repairs that for a while.
        rates = {count: rates_over(count) for count in (MAX_CONNECTIONS, 1)}
        if (_fewest(rates) > 1).any():  # one connection may have lost a packet, which costs it alone
            rates[1] = np.maximum(rates[1], rates_over(1))
        while unknown := set(_fewest(rates).tolist()) - rates.keys():
            rates[min(unknown)] = rates_over(min(unknown))
    paid = _fewest(rates)
    trips_s = np.array([2 * float(latencies_s[pair]) for pair in pairs])
    wanted = with_spare(paid, trips_s)
    shown = int(np.lexsort((-rates[1], wanted))[-1])
    i, j = pairs[shown]
    carried = ", ".join(f"{count}: {format_rate(float(each[shown]) / 2)}" for count, each in sorted(rates.items()))
    return ConnectionChoice(
        connections=int(wanted[shown]),
        why=f"{_reason(int(paid[shown]), int(wanted[shown]))}; {names[i]} to {names[j]}, round trip "
        f"{format_time(trips_s[shown])}, carries with so many connections {carried}",
    )


def with_spare(paid: Ints, trips_s: Floats) -> Ints:
    """Return the connections for windows that pauses have halved, from the numbers that pay.

    Args:
        paid: Connections that pay while data flows, (pairs,).
        trips_s: Round trips, likewise.

    """
    lock_step = halvings(_LEAST_PAUSE_TRIPS * trips_s, trips_s).astype(np.int64)
    return np.where(paid > 1, np.minimum(paid * _SPARE * 2**lock_step, MAX_CONNECTIONS), 1)


def _fewest(rates: Mapping[int, Matrix]) -> Ints:
    """Return for each pair the least power of two to which more would add less than 30 %, (pairs,).

    Args:
        rates: Number of connections -> rates of pairs. Others are taken to carry what one does, so many times.

    """
    counts = 2 ** np.arange(MAX_CONNECTIONS.bit_length())
    carried = np.stack([rates.get(count, count * rates[1]) for count in counts.tolist()])
    most = np.max(list(rates.values()), axis=0)
    return counts[np.argmax(carried * _LEAST_GAIN > most, axis=0)]


def _reason(paid: int, wanted: int) -> str:
    if wanted == 1:
        return "one connection, since two do not pay"
    return f"{wanted} connections, since {paid} pay, and more of them start sooner after a pause"


@contextmanager
def _streams(comm: Comm, pairs: Sequence[Pair], duration_s: float) -> Generator[Callable[[int], Matrix]]:
    """Connect disjoint pairs; yield a function from a number of connections to the bytes per second of each pair.

    Both ways of a pair are added up, (pairs,). Pairs alone are connected: a rank may have many peers, and a limit of
    open files.
    """
    streams = comm.split(pairs, MAX_CONNECTIONS)

    def rates_over(connections: int) -> Matrix:
        mine = torch.zeros(len(pairs), dtype=torch.float64)
        if streams is not None:
            (k,) = (k for k, pair in enumerate(pairs) if comm.rank in pair)
            asks, answers = End(comm, sum(pairs[k]) - comm.rank), End(streams, 1 - streams.rank)
            mine[k] = measure_connections(asks, answers, duration_s, connections)
        return gather_small(comm, mine).sum(0).numpy()

    try:
        yield rates_over
    finally:
        if streams is not None:
            streams.close()
