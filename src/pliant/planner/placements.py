"""Places of owned parts on uneven networks: bandwidths of ranks, and owners by name after the traffic of each link."""

import math
import random
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import Floats
from pliant.planner.genome import Genome
from pliant.spec import Topology

__all__ = ["OwnerPlaces", "balanced_owners", "rank_bandwidths"]

Ints: TypeAlias = NDArray[np.int64]

_MOST_RANKS = 64
"""Ranks up to which owners are named one by one."""
_TURNS_OF_A_RANK = 32
"""Most turns of the owners, over the number of ranks."""
_CLOSE = 0.02
"""What a rank may own beyond its share, over the mean, at which no more turns are tried."""
_RATIOS = np.geomspace(1 / 16, 16, 33)
"""Times of new weights over those of gradients that are looked at."""
_HALVINGS = 50


def rank_bandwidths(topology: Topology) -> tuple[float, ...]:
    """Return each rank's part of its host's slowest rate, as multiples of the least; empty if all are alike.

    A host without any limit counts as the fastest that has one.

    >>> from pliant.spec import Host
    >>> rank_bandwidths(Topology(hosts=(Host(name="a", send_bytes_per_s=2e7), Host(name="b", send_bytes_per_s=1e7))))
    (2.0, 1.0)

    """
    shares = [
        rate / host.num_ranks
        for rate, host in zip(_host_rates(topology), topology.hosts, strict=True)
        for _ in range(host.num_ranks)
    ]
    least = min(shares)
    if not least or math.isclose(max(shares), least, rel_tol=0.05):
        return ()
    return tuple(round(share / least, 2) for share in shares)


def balanced_owners(topology: Topology, *, weights_alone: bool = False) -> tuple[int, ...]:
    """Return owners for parts in turn, under which gradients and new weights take least on uneven links.

    Of N ranks, m are on a host that owns the share x of a model of G bytes. First m (1 - x) G leave it as gradients and
    (N - m) x G come; then (N - m) x G leave it as weights and m (1 - x) G come. Each of the two times is that of the
    busiest link, so that x lies between bounds that follow from both. The least sum of both is found by bisection for
    each of some ratios between them. Where links carry as much both ways, equal parts are the best, however uneven
    hosts are. Where a host sends slower than it receives, it should own less, or nothing.

    Args:
        topology: Hosts, whose ranks own equal parts, and links.
        weights_alone: Whether the time of gradients may be 16 times that of weights, as backward passes may hide it.

    Returns:
        Ranks, (num_turns,), each as often as it owns parts, in ascending order. Empty where all ranks should own as
        much, without limits of links, on one host, and from 65 ranks on.

    >>> from pliant.spec import Host
    >>> rates = (1e8, 5e7, 1e8, 1e8)
    >>> hosts = [Host(name=f"h{k}", send_bytes_per_s=up, receive_bytes_per_s=1e8) for k, up in enumerate(rates)]
    >>> balanced_owners(Topology(hosts=tuple(hosts)))
    (0, 0, 1, 2, 2, 3, 3)

    """
    num_on = np.array([host.num_ranks for host in topology.hosts])
    num_ranks = int(num_on.sum())
    if len(num_on) == 1 or num_ranks > _MOST_RANKS:
        return ()
    shares = _shares(_Links.of(topology, num_on), num_on, weights_alone=weights_alone)
    if shares.max() - shares.min() <= _CLOSE * shares.max():
        return ()
    return tuple(np.repeat(np.arange(num_ranks), _turns(shares)).tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Links:
    """Rates of hosts, (num_hosts,), over the bytes of a model, without limit where they are infinite."""

    sends: Floats
    receives: Floats
    least_into: Floats
    """Least rate of the pairs into a host, over the ranks of the other."""
    least_from: Floats

    @classmethod
    def of(cls, topology: Topology, num_on: Ints) -> "_Links":
        places = {host.name: k for k, host in enumerate(topology.hosts)}
        pairs = np.full((len(places), len(places)), np.inf)
        for link in topology.links:
            pairs[places[link.source], places[link.target]] = link.bytes_per_s or np.inf
        return cls(
            sends=np.array([host.send_bytes_per_s or np.inf for host in topology.hosts]),
            receives=np.array([host.receive_bytes_per_s or np.inf for host in topology.hosts]),
            least_into=(pairs / num_on[:, None]).min(0),
            least_from=(pairs / num_on[None]).min(1),
        )


def _shares(links: _Links, num_on: Ints, *, weights_alone: bool) -> Floats:
    """Return the share of the model that each rank should own, (num_ranks,)."""
    away = num_on.sum() - num_on
    most_first = np.minimum(links.receives / away, links.least_into)
    most_then = np.minimum(links.sends / away, links.least_from)
    rates = np.concatenate([links.sends, links.receives, links.least_into, links.least_from])
    if np.isinf(rates).all():
        return np.full(int(num_on.sum()), 1 / num_on.sum())

    def bounds(first_s: Floats) -> tuple[Floats, Floats]:
        one, other = first_s[:, None], (first_s * _RATIOS)[:, None]
        low = np.maximum(1 - one * links.sends / num_on, 1 - other * links.receives / num_on)
        return np.maximum(low, 0), np.minimum(np.minimum(one * most_first, other * most_then), 1)

    long_s = num_on.sum() / rates.min() * np.maximum(1, 1 / _RATIOS)
    short_s = 1e-6 * long_s
    for _ in range(_HALVINGS):
        middle_s = np.sqrt(short_s * long_s)
        low, high = bounds(middle_s)
        can_be = (low <= high).all(1) & (low.sum(1) <= 1) & (high.sum(1) >= 1)
        short_s, long_s = np.where(can_be, short_s, middle_s), np.where(can_be, middle_s, long_s)
    best = 0 if weights_alone else int(np.argmin(long_s * (1 + _RATIOS)))
    low, high = (each[best] for each in bounds(long_s))
    room = high - low
    owned = low + room * (1 - low.sum()) / max(room.sum(), np.finfo(float).tiny)
    return np.repeat(owned / num_on, num_on)


def _turns(shares: Floats) -> Ints:
    """Return how often each rank has its turn, so that none has much more than its share, (num_ranks,)."""
    best, least = np.ones(len(shares), dtype=np.int64), math.inf
    for total in range(1, _TURNS_OF_A_RANK * len(shares) + 1):
        turns = np.floor(shares * total).astype(np.int64)
        turns[np.argsort(turns - shares * total, kind="stable")[: total - int(turns.sum())]] += 1
        more = float((turns / total - shares).max()) * len(shares)
        if more < least - 1e-12:
            best, least = turns, more
        if least <= _CLOSE:
            break
    return best


class OwnerPlaces:
    """Bandwidths and owners that plans on a topology may give to parts that have owners.

    Args:
        topology: Where rates of ranks are even, parts are equal, and nothing else is tried.

    """

    def __init__(self, topology: Topology) -> None:
        self._num_ranks = topology.num_ranks
        named = [balanced_owners(topology, weights_alone=alone) for alone in (False, True)]
        self._bandwidths = rank_bandwidths(topology)
        self._names_owners = any(named)
        self.tried = tuple(dict.fromkeys([((), ()), (self._bandwidths, ()), *(((), owners) for owners in named)]))
        """Bandwidths and owners to begin with: equal parts, then those by bandwidth, then owners by name."""

    def __contains__(self, genes: Genome) -> bool:
        """Say whether the parts of a plan may be placed as it says."""
        if genes.owners:
            ranks_exist = max(genes.owners) < self._num_ranks
            short = len(genes.owners) <= _TURNS_OF_A_RANK * self._num_ranks
            return self._names_owners and ranks_exist and short and not genes.bandwidths
        return genes.bandwidths in ((), self._bandwidths)

    @property
    def has_choice(self) -> bool:
        """Whether there is more than equal parts."""
        return len(self.tried) > 1

    def placed(self, genes: Genome, rng: random.Random) -> Genome:
        """Return a plan with one of the places, equal parts half of the time; the same if there is no choice."""
        if not self.has_choice or rng.random() < 0.5:
            return genes
        bandwidths, owners = rng.choice(self.tried[1:])
        return replace(genes, bandwidths=bandwidths, owners=owners)

    def changed(self, genes: Genome, rng: random.Random) -> Genome:
        """Return a plan with another of the places, or with one turn of its owners given to another rank."""
        if genes.owners and rng.random() < 0.5:
            owners = list(genes.owners)
            owners[rng.randrange(len(owners))] = rng.randrange(self._num_ranks)
            return replace(genes, owners=tuple(sorted(owners)))
        others = [each for each in self.tried if each != (genes.bandwidths, genes.owners)]
        bandwidths, owners = rng.choice(others)
        return replace(genes, bandwidths=bandwidths, owners=owners)


def _host_rates(topology: Topology) -> list[float]:
    """Return the slowest rate of each host, in bytes per s; all 0 if no host has a limit."""
    limits: list[float] = []
    for host in topology.hosts:
        links = [link.bytes_per_s for link in topology.links if host.name in (link.source, link.target)]
        limits.append(min([rate for rate in (host.send_bytes_per_s, host.receive_bytes_per_s, *links) if rate] or [0]))
    return [rate or max(limits) for rate in limits]
