"""Inference of a topology from rates of pairs of hosts: pure functions of matrices."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pliant.spec import Host, Link, Topology

__all__ = [
    "NOISE",
    "Pair",
    "have_own_paths",
    "host_delays",
    "host_rates",
    "log_distance",
    "more_usual",
    "odd_streams",
    "outlier_streams",
    "rates_by_hosts",
    "round_robin_pairs",
    "slow_pairs",
    "split_into_rounds",
    "topology_from",
]

Pair = tuple[int, int]
Matrix = NDArray[np.float64]

NOISE = 0.2
"""Part of a rate by which a pair must be below what its hosts can do, to be given a link of its own."""

_ODD, _MOST_ODD, _TURNS = 0.25, 1 / 3, 5
"""Part by which a stream must be off to be odd; share of odd streams from which on pairs are what limits them; turns in
which limits of sources and of targets are fitted to each other."""

_NOISE_S = 0.001
"""Time by which a pair's latency must differ from what its hosts say, and also by a quarter of it."""


def round_robin_pairs(num: int) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which each meets each once: num - 1 rounds, num if that is odd.

    The circle method: one stays, the others move on by a place a round.
    """
    seats = list(range(num + num % 2))  # a seat more for whoever is free
    rounds: list[list[Pair]] = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < num])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def split_into_rounds(pairs: Sequence[Pair], at_most: int) -> list[list[Pair]]:
    """Return rounds of disjoint pairs, filled in order; what does not fit into the last is left out."""
    rounds: list[list[Pair]] = [[] for _ in range(at_most)]
    for pair in pairs:
        free = (r for r in rounds if not any(set(pair) & set(other) for other in r))
        if (first := next(free, None)) is not None:
            first.append(pair)
    return [r for r in rounds if r]


def host_rates(rounds: Matrix, crowd: Matrix | None = None) -> tuple[Matrix, Matrix]:
    """Return what each host can send and receive, (hosts,) each: the median of its streams that are near its best.

    A stream is as fast as the slower of its ends, so only the best tell what a host can do; near is within the noise.
    Where pairs are what limits them, a host can do more than its best stream: what all of them carry at once.

    Args:
        rounds: Bytes per second in each round from source to target, (rounds, hosts, hosts); 0 for no stream.
        crowd: The same while all send to all, (hosts, hosts); None if that was not measured.

    """

    def typical(streams: Matrix) -> float:
        return float(np.median(streams[streams >= (1 - NOISE) * streams.max()]))

    hosts = range(rounds.shape[1])
    send = [typical(rounds[:, k, :].ravel()) for k in hosts]
    receive = [typical(rounds[:, :, k].ravel()) for k in hosts]
    if crowd is None:
        return np.array(send), np.array(receive)

    def larger(best: list[float], together: Matrix) -> Matrix:
        return np.where(together > (1 + NOISE) * np.array(best), together, best)

    return larger(send, crowd.sum(1)), larger(receive, crowd.sum(0))


def slow_pairs(rounds: Matrix, pairs: Matrix, crowd: Matrix | None = None) -> list[Pair]:
    """Return (source, target) of pairs that are below what their hosts can do by more than the noise.

    Args:
        rounds: As in `host_rates`.
        pairs: Bytes per second of pairs by themselves, (hosts, hosts); 0 where that was not measured.
        crowd: As in `host_rates`.

    """
    send, receive = host_rates(rounds, crowd)
    could = np.minimum(send[:, None], receive[None, :])
    slow = (pairs > 0) & (pairs < (1 - NOISE) * could)
    return [(int(i), int(j)) for i, j in np.argwhere(slow)]


def have_own_paths(rounds: Matrix, pairs: Matrix) -> bool:
    """Say whether a quarter of the pairs are below what their hosts can do, as where each has a path of its own.

    Args:
        rounds: As in `host_rates`.
        pairs: As in `slow_pairs`.

    """
    return len(pairs) > 2 and len(slow_pairs(rounds, pairs)) > int(np.count_nonzero(pairs)) / 4


def outlier_streams(rounds: Matrix) -> list[tuple[int, int, int]]:
    """Return (round, source, target) of streams that are faster than all others of either end by more than the noise.

    Such a stream alone gives the rate of its end. It is the only one to an equal, or a mistake in timing: a second one
    decides.

    Args:
        rounds: As in `host_rates`.

    """
    found: list[tuple[int, int, int]] = []
    for turn, i, j in np.argwhere(rounds > 0).tolist():
        others = rounds.copy()
        others[turn, i, j] = 0.0
        if min(others[:, i, :].max(), others[:, :, j].max()) < (1 - NOISE) * rounds[turn, i, j]:
            found.append((turn, i, j))
    return found


def rates_by_hosts(pairs: Matrix) -> Matrix:
    """Return the rates that pairs would have if hosts alone limited them, (hosts, hosts).

    A stream is as fast as the slower of its ends. The limits are those with which the logarithms of all streams are the
    least off in sum, so that a few streams that had to wait, or whose data came all at once, do not move them.

    Args:
        pairs: As in `slow_pairs`.

    """
    seen = pairs > 0
    logs = np.log(np.where(seen, pairs, 1.0))
    sources, targets = (np.where(seen, logs, -np.inf).max(axis) for axis in (1, 0))
    for _ in range(_TURNS):
        for own, others, table, there in ((sources, targets, logs, seen), (targets, sources, logs.T, seen.T)):
            for k in np.flatnonzero(there.any(1)):
                streams = table[k, there[k]]
                tried = np.unique(streams)[::-1]  # of equals the largest: a host may do more than it was seen to do
                off = np.abs(streams - np.minimum(tried[:, None], others[there[k]])).sum(1)
                own[k] = tried[off.argmin()]
    return np.exp(np.minimum(sources[:, None], targets))


def odd_streams(pairs: Matrix, usual: Matrix) -> list[Pair]:
    """Return (source, target) of streams that are not as `rates_by_hosts` says, the farthest off first.

    Args:
        pairs: As in `slow_pairs`.
        usual: From `rates_by_hosts`.

    Returns:
        None where more than a third of the streams are odd: there pairs are what limits them.

    """
    off = log_distance(pairs, usual)
    odd: list[Pair] = [(int(i), int(j)) for i, j in np.argwhere(off > math.log1p(_ODD))]
    odd.sort(key=lambda pair: -off[pair])
    return [] if len(odd) > _MOST_ODD * np.count_nonzero(pairs) else odd


def more_usual(pairs: Matrix, again: Matrix, usual: Matrix) -> Matrix:
    """Return the rates of pairs, and those of second streams where these are nearer to what is usual.

    Args:
        pairs: As in `slow_pairs`.
        again: The same, of the second streams.
        usual: From `rates_by_hosts`.

    """
    return np.where((again > 0) & (log_distance(again, usual) < log_distance(pairs, usual)), again, pairs)


def log_distance(pairs: Matrix, usual: Matrix) -> Matrix:
    """Return how far the logarithms of rates are from usual ones, (hosts, hosts); 0 where there was no stream."""
    return np.where(pairs > 0, np.abs(np.log(np.where(pairs > 0, pairs, 1.0) / usual)), 0.0)


def host_delays(latencies_s: Matrix) -> Matrix:
    """Return the part of each host, (hosts,), in the one-way latencies of pairs.

    A round trip tells the sum of both ways only, and so half of it is (d_i + d_j) / 2; least squares over all pairs,
    and of equals the smallest, so that two hosts share evenly what they have.

    Args:
        latencies_s: Half of the round trip between two hosts, symmetric (hosts, hosts); NaN where not measured.

    """
    num = len(latencies_s)
    pairs = [(i, j) for i in range(num) for j in range(i + 1, num) if np.isfinite(latencies_s[i, j])]
    if not pairs:
        return np.zeros(num)
    rows = np.zeros((len(pairs), num))
    for row, pair in zip(rows, pairs, strict=True):
        row[list(pair)] = 0.5
    found = np.linalg.lstsq(rows, np.array([latencies_s[pair] for pair in pairs]), rcond=None)[0]
    return np.maximum(found, 0.0)


def topology_from(
    names: Sequence[str],
    num_ranks: Sequence[int],
    rounds: Matrix,
    pairs: Matrix,
    latencies_s: Matrix,
    provenance: str,
    crowd: Matrix | None = None,
) -> Topology:
    """Return hosts with their own limits, and links where a pair differs from what its hosts say by more than noise.

    The matrices are those of `host_rates`, `slow_pairs` and `host_delays`.
    """
    send, receive = host_rates(rounds, crowd)
    delays_s = host_delays(latencies_s)
    hosts = [
        Host(
            name=name,
            num_ranks=count,
            send_bytes_per_s=float(send[k]),
            receive_bytes_per_s=float(receive[k]),
            delay_s=float(delays_s[k]),
        )
        for k, (name, count) in enumerate(zip(names, num_ranks, strict=True))
    ]
    expected_s = (delays_s[:, None] + delays_s[None, :]) / 2
    found_s = np.where(np.isfinite(latencies_s), latencies_s, expected_s)
    far = np.abs(found_s - expected_s) > np.maximum(_NOISE_S, 0.25 * expected_s)
    np.fill_diagonal(far, False)
    slow = slow_pairs(rounds, pairs, crowd)
    if crowd is not None:  # each pair has a path of its own
        slow = [(int(i), int(j)) for i, j in np.argwhere(pairs > 0)]
    links: list[Link] = []
    for i, j in sorted({*slow, *((int(i), int(j)) for i, j in np.argwhere(far))}):
        rate = pairs[i, j] if (i, j) in slow else min(send[i], receive[j])
        latency_s = found_s[i, j] if far[i, j] else delays_s[j]
        links.append(Link(source=names[i], target=names[j], bytes_per_s=float(rate), latency_s=float(latency_s)))
    return Topology(hosts=tuple(hosts), links=tuple(links), provenance=provenance)
