"""Rates of links by the number of connections: one cannot always fill a long link, or a policed one."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from pliant.comm import Comm
from pliant.network.inference import round_robin_pairs
from pliant.network.parallel_streams import End, measure_connections
from pliant.network.rank_places import ranks_of_hosts, require_gloo

__all__ = ["ConnectionRates", "measure_by_connections"]

_WARM_UP_S, _LEAST_S, _LONGEST_S = 0.5, 1.0, 3.0


@dataclass(frozen=True, kw_only=True)
class ConnectionRates:
    """Rates from one host to another, over one connection and over several, while the same goes the other way."""

    source: str
    target: str
    num_connections: int
    one_bytes_per_s: float
    several_bytes_per_s: float


def measure_by_connections(
    comm: Comm,
    *,
    num_connections: int = 4,
    budget_s: float = 10.0,
    hosts: Sequence[Sequence[int]] | None = None,
) -> list[ConnectionRates]:
    """Measure pairs of hosts over one connection, then over several, which carry slices. Collective.

    Pairs are disjoint in each round, and there are as many rounds as the budget has room for. A stream takes 1 to 3 s.

    Args:
        comm: Ranks to measure; over Gloo. One rank of each host takes part.
        num_connections: Connections of the second stream.
        budget_s: Time for all, but for making the groups.
        hosts: Ranks of each host, in order; as for `probe`.

    Returns:
        The same on all ranks: both directions of each pair.

    Raises:
        ValueError: The comm is not over Gloo, or there are fewer than two connections.

    """
    require_gloo(comm)
    if num_connections < 2:
        raise ValueError(f"{num_connections} connections are to be compared with one; ask for at least 2.")
    names, places = ranks_of_hosts(comm, hosts)
    if len(places) < 2:
        return []
    rounds = round_robin_pairs(len(places))
    rounds = rounds[: max(1, min(len(rounds), int(budget_s / (_WARM_UP_S + 2 * _LEAST_S))))]
    duration_s = min(max((budget_s / len(rounds) - _WARM_UP_S) / 2, _LEAST_S), _LONGEST_S)
    rates = torch.zeros(len(places), len(places), 2, dtype=torch.float64)  # (source, target, one or several)
    with ExitStack() as stack:
        leaders = [ranks[0] for ranks in places]
        groups = [comm.split([leaders], count) for count in (1, num_connections)]
        mine = [group for group in groups if group is not None]
        for group in mine:
            stack.callback(group.close)
        for pairs in rounds if mine else ():
            asks, streams = mine
            me = asks.rank
            peer = next((a + b - me for a, b in pairs if me in (a, b)), None)
            # The first does not count: behind a shaper slow start loses packets, and TCP repairs that for a while.
            for k, lasts_s in ((1, _WARM_UP_S), (0, duration_s), (1, duration_s)):
                asks.barrier()
                if peer is not None:
                    count = num_connections if k else 1
                    rates[peer, me, k] = measure_connections(End(asks, peer), End(streams, peer), lasts_s, count)
    comm.all_reduce(rates).wait()  # each rate was measured by one rank
    return [
        ConnectionRates(
            source=names[i],
            target=names[j],
            num_connections=num_connections,
            one_bytes_per_s=float(rates[i, j, 0]),
            several_bytes_per_s=float(rates[i, j, 1]),
        )
        for pairs in rounds
        for a, b in pairs
        for i, j in ((a, b), (b, a))
    ]
