"""Orders of hosts for schedules whose neighbours are neighbours in that order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import Floats, Links, Overheads
from pliant.spec import Move, Schedule, Topology

__all__ = ["host_orders", "reordered"]

_Order = tuple[int, ...]
_NORM = 8
"""Norm of the hops' times: the slowest decides, and of equal ones, how many there are."""
_MOST_TRIED = 7
"""Up to so many hosts, all orders are tried."""


def host_orders(topology: Topology, overheads: Overheads | None = None) -> list[_Order]:
    """Return orders of hosts in which neighbours have fast links, the given one first.

    Two goals: the slowest hops around a ring, which decide where messages are large, and the delay once around, where
    they are small. Each is minimized over all orders of up to 7 hosts. For more, hosts are inserted one by one where
    they cost least, and then runs that follow each other change places while that helps: 3-opt without turning a run
    around, since the ways there and back differ. Hosts whose pairs have no links of their own have the given order
    alone.
    """
    given = tuple(range(len(topology.hosts)))
    if not topology.links or len(given) < 3:
        return [given]
    links = Links(topology, overheads)
    per_byte_s = np.maximum(links.out_s[:, None], links.in_s[None, :])  # (num_hosts, num_hosts)
    own = (links.link_source, links.link_target)
    per_byte_s[own] = np.maximum(per_byte_s[own], links.link_s)

    def slowest(orders: NDArray[np.int64]) -> Floats:
        return (per_byte_s[orders, np.roll(orders, -1, axis=-1)] ** _NORM).sum(axis=-1)

    def around(orders: NDArray[np.int64]) -> Floats:
        return links.delays_s[orders, np.roll(orders, -1, axis=-1)].sum(axis=-1)

    return list(dict.fromkeys([given, *(_best(len(given), cost) for cost in (slowest, around))]))


def _best(num: int, cost: Callable[[NDArray[np.int64]], Floats]) -> _Order:
    """Return an order of least cost, or a good one if there are too many; the first stays, since rings have no end."""
    if num <= _MOST_TRIED:
        orders = np.array([(0, *rest) for rest in permutations(range(1, num))])
        return tuple(orders[cost(orders).argmin()].tolist())
    order = [0]
    for host in range(1, num):
        places = np.array([[*order[:at], host, *order[at:]] for at in range(1, len(order) + 1)])
        order = places[cost(places).argmin()].tolist()
    while True:
        moved = np.array(
            [[*order[:a], *order[b:c], *order[a:b], *order[c:]] for a, b, c in combinations(range(1, num + 1), 3)]
        )
        found = moved[cost(moved).argmin()]
        if not cost(found[None])[0] < cost(np.array([order]))[0]:
            return tuple(order)
        order = found.tolist()


def reordered(topology: Topology, order: Sequence[int]) -> tuple[Topology, Callable[[Schedule], Schedule]]:
    """Return the topology with its hosts in an order, and how a schedule for it becomes one for the given ranks."""
    ranks = [rank for host in order for rank in topology.ranks_of(host)]

    def renamed(schedule: Schedule) -> Schedule:
        rounds = (tuple(sorted(_named(move, ranks) for move in moves)) for moves in schedule.rounds)
        return replace(schedule, rounds=tuple(rounds))

    return replace(topology, hosts=tuple(topology.hosts[host] for host in order)), renamed


def _named(move: Move, ranks: Sequence[int]) -> Move:
    return replace(move, source=ranks[move.source], target=ranks[move.target])
