"""Probe of the network: all ranks measure rates and latencies together."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import torch

from pliant.comm import Comm, duplicate
from pliant.comm.small_gather import gather_small
from pliant.comm.striping import ConnectionChoice
from pliant.netmodel import Overheads
from pliant.network.connection_choice import choose_between_hosts
from pliant.network.cores import count_cpus
from pliant.network.inference import (
    Matrix,
    Pair,
    have_own_paths,
    outlier_streams,
    round_robin_pairs,
    slow_pairs,
    split_into_rounds,
    topology_from,
)
from pliant.network.rank_facts import starts_slowly
from pliant.network.rank_places import ask_hosts, ranks_of_hosts, require_gloo
from pliant.network.streams import MAX_STREAM_BYTES, half_trips_s, measure_throughput
from pliant.spec import Topology, from_json, to_json
from pliant.spec.units import format_bytes, format_time

__all__ = ["least_stream_s", "probe", "provenance_of"]

_LEAST_STREAM_S, _LONGEST_STREAM_S = 0.3, 1.0
_SECOND_LOOKS = 2
_MEETINGS_OF_TWO = 3
"""Two hosts have no others to tell a mishap by."""
_LATENCY_SHARE = 0.15
_LEAST_TRIPS = 12
_WIRE_FACTOR = Overheads().wire_factor


def probe(
    comm: Comm,
    *,
    budget_s: float = 5.0,
    hosts: Sequence[Sequence[int]] | None = None,
    connections: int = 0,
) -> Topology:
    """Measure rates and latencies between the hosts of a group, over its own transport. Collective.

    One rank of each host takes part; the others wait. Round trips, then streams both ways, in rounds of disjoint pairs
    of hosts in which each meets each; then all hosts send at once round a ring, to the next and to the next but one.
    The best streams of a host give its rates. A pair that is 20 % below its hosts' rates is measured again, and becomes
    a `Link` if it stays there; a stream that beats all others is measured again, too. Rates are those of links,
    headers included, as in any topology: of payload over as many connections as in training, times
    `Overheads.wire_factor`.

    Args:
        comm: Ranks to measure; over Gloo.
        budget_s: Time for it all, not counting second measurements, nor the choice of connections. Where it does not
            suffice for a stream of 0.3 s, or of 12 round trips, in each round, rounds are left out, evenly; a pair that
            was left out gets its hosts' own rates.
        hosts: Ranks of each host, in order; where None, ranks that see one network of one machine are on one host.
        connections: Connections between each two ranks; 0 for as many as pay (`choose_connections`).

    Returns:
        The same on all ranks. A host's delay is its part in half of a round trip, less the time of a message.

    Raises:
        ValueError: The comm is not over Gloo, the budget is not below half of the comm's timeout, or the ranks of a
            host do not follow each other.
        CommError: A rank is gone.

    """
    require_gloo(comm)
    if not 0 < budget_s < comm.timeout_s / 2:
        raise ValueError(
            f"the probe may take {budget_s:g} s, but its comm gives up after {comm.timeout_s:g} s; the budget must be "
            "above 0 and below half of the timeout."
        )
    names, places = ranks_of_hosts(comm, hosts)
    counts = [len(ranks) for ranks in places]

    def topology(between: Comm) -> str:
        return to_json(_Probe(between, budget_s, connections).run(names, counts))

    found = from_json(Topology, ask_hosts(comm, places, 1, topology))
    return replace(found, num_cpus=count_cpus(comm), restarts_slowly=starts_slowly(comm))


def least_stream_s(latencies_s: Matrix) -> float:
    """Return how long a stream lasts at least: one of a round trip's length is all slow start.

    Args:
        latencies_s: Half of the round trip between two hosts, (hosts, hosts); NaN where not measured.

    """
    return max(_LEAST_STREAM_S, _LEAST_TRIPS * 2 * float(np.nanmax(latencies_s)))


class _Probe:
    """Part of one rank of each host in a probe; rank k of the comm stands for host k."""

    def __init__(self, comm: Comm, budget_s: float, connections: int) -> None:
        self._comm, self._budget_s, self._connections = comm, budget_s, connections
        self._start_s = time.perf_counter()
        self._late_s = 0.0

    def run(self, names: Sequence[str], num_ranks: Sequence[int]) -> Topology:
        size = self._comm.size
        if size == 1:
            nothing = np.zeros((1, 1, 1))
            return topology_from(
                names, num_ranks, nothing, nothing[0], nothing[0], self._provenance("", sum(num_ranks))
            )
        all_rounds = round_robin_pairs(size)
        shifts = range(1, min(size, 3)) if size > 2 else ()  # two hosts are their own ring
        affordable = max(1, int((1 - _LATENCY_SHARE) * self._budget_s / _LEAST_STREAM_S) - len(shifts))
        chosen = all_rounds[:: -(-len(all_rounds) // affordable)] if size > 2 else all_rounds * _MEETINGS_OF_TWO
        latencies_s = half_trips_s(self._comm, chosen, _LATENCY_SHARE * self._budget_s / (len(chosen) + 1))
        choice = self._choose_connections(names, latencies_s)
        streams = self._streams = duplicate(self._comm, choice.connections)
        self._least_s = least_stream_s(latencies_s)
        num_rounds = len(chosen) + len(shifts)
        rank, received = self._comm.rank, list[dict[int, float]]()
        for k, pairs in enumerate(chosen):
            received.append(self._meet(pairs, num_rounds - k))
        for shift in shifts:
            received.append(self._stream([(rank + shift) % size], [(rank - shift) % size], num_rounds - len(received)))
        rounds = self._rates(received)
        alone = rounds[: len(chosen)].max(0)
        odd = [(i, j) for _, i, j in outlier_streams(rounds)]
        odd += slow_pairs(rounds, alone)
        again = split_into_rounds(list(dict.fromkeys((min(pair), max(pair)) for pair in odd)), _SECOND_LOOKS)
        if again:
            more = self._rates([self._meet(pairs, len(again) - k) for k, pairs in enumerate(again)])
            rounds = np.concatenate([more, rounds])  # those of pairs by themselves remain the first
            looked_at = {pair for turn in again for pair in turn}
            for turn, i, j in outlier_streams(rounds):
                if (min(i, j), max(i, j)) in looked_at:  # seen twice, and fast once only
                    rounds[turn, i, j] = 0.0
            alone = rounds[: len(again) + len(chosen)].max(0)
        one_way, crowd = self._look_closer(chosen) if have_own_paths(rounds, alone) else ([], None)
        if one_way:
            alone = np.maximum(alone, one := self._rates(one_way).max(0))
            rounds = np.concatenate([one[None], rounds])
        most = max(len(chosen), len(all_rounds))
        what = (
            f"{len(chosen)} of {most} rounds of pairs, {len(shifts)} of all in a ring, {len(again)} second "
            f"looks, {len(one_way)} rounds one way, at most {format_bytes(MAX_STREAM_BYTES)} at a time"
        )
        streams.close()
        provenance = self._provenance(f"{what}; {choice.why}", sum(num_ranks))
        found = topology_from(names, num_ranks, rounds, alone, latencies_s, provenance, crowd)
        return replace(found, connections=choice.connections)

    def _look_closer(self, chosen: Sequence[Sequence[Pair]]) -> tuple[list[dict[int, float]], Matrix]:
        """Return streams of each pair one way after the other, and what all carry when all send to all.

        Acknowledgements of a fast way would fill a slow way back; and several streams show whether a host has a limit
        of its own.
        """
        rank, size, left = self._comm.rank, self._comm.size, 2 * len(chosen) + 1
        found: list[dict[int, float]] = []
        for pairs in (turn for both in chosen for turn in (both, [(b, a) for a, b in both])):
            targets, sources = ([pair[1 - k] for pair in pairs if pair[k] == rank] for k in (0, 1))
            found.append(self._stream(targets, sources, left - len(found)))
        others = [(rank + k) % size for k in range(1, size)]
        crowd = self._rates([self._stream(others, [(rank - k) % size for k in range(1, size)], 1)])
        return found, crowd[0]

    def _choose_connections(self, names: Sequence[str], latencies_s: Matrix) -> ConnectionChoice:
        if self._connections:
            why = f"{self._connections} connections between two ranks, as asked for"
            return ConnectionChoice(connections=self._connections, why=why)
        start_s = time.perf_counter()
        choice = choose_between_hosts(self._comm, names, latencies_s)
        self._start_s += time.perf_counter() - start_s
        return choice

    def _meet(self, pairs: Sequence[Pair], num_left: int) -> dict[int, float]:
        peer = next((a + b - self._comm.rank for a, b in pairs if self._comm.rank in (a, b)), None)
        peers = [] if peer is None else [peer]
        return self._stream(peers, peers, num_left)

    def _stream(self, targets: Sequence[int], sources: Sequence[int], num_left: int) -> dict[int, float]:
        """Make one of the rounds that are left, in step with all others; a slow link's takes longer than it should."""
        mine = torch.tensor([time.perf_counter() - self._start_s, self._late_s], dtype=torch.float64)
        elapsed_s, late_s = gather_small(self._comm, mine).amax(0).tolist()
        duration_s = (self._budget_s - elapsed_s) / num_left - late_s
        duration_s = min(max(duration_s, self._least_s), max(self._least_s, _LONGEST_STREAM_S))
        start_s = time.perf_counter()
        rates = measure_throughput(self._streams, targets, sources, duration_s)
        self._late_s = max(0.0, time.perf_counter() - start_s - duration_s)
        return rates

    def _rates(self, received: Sequence[dict[int, float]]) -> Matrix:
        """Return all hosts' rates by round, headers included, (rounds, source, target), from the payload received."""
        mine = torch.zeros(len(received), self._comm.size, dtype=torch.float64)
        for row, rates in zip(mine, received, strict=True):
            for source, rate in rates.items():
                row[source] = rate * _WIRE_FACTOR
        return gather_small(self._comm, mine.flatten()).numpy().reshape(self._comm.size, *mine.shape).transpose(1, 2, 0)

    def _provenance(self, what: str, num_ranks: int) -> str:
        hosts = f"{num_ranks} ranks on {self._comm.size} hosts"
        took = f"took {format_time(time.perf_counter() - self._start_s)}"
        return provenance_of("pliant probe over gloo", *(part for part in (hosts, what, took) if part))


def provenance_of(command: str, *facts: str) -> str:
    """Return where a measurement comes from: command, time, versions, load of this machine, and what else is given."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return "; ".join([command, now, f"torch {torch.__version__}", platform.machine(), *facts, load])
