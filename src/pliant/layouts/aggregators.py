"""Ranks of each host that add up what goes from it to owners on other hosts: rules of executor and simulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

__all__ = ["Aggregators"]


@dataclass(frozen=True, kw_only=True)
class Aggregators:
    """Ranks through which one rank's host sends to owners, and through which other hosts send to this rank.

    The aggregator of an owner at place p of its host is, on another host of m ranks, the one at place p mod m. So each
    part crosses a host's link once each way, on hosts of any sizes, and all ranks of equal hosts do equal work.
    """

    place: int
    """Place of the rank among those of its host."""
    owners: tuple[tuple[int, ...], ...]
    """For each place of the host, the owners for which that rank adds up: itself first, then those elsewhere."""
    elsewhere: tuple[int, ...]
    """Aggregators of the rank's own parts on the other hosts, ascending."""

    @classmethod
    def of(cls, hosts: Sequence[Sequence[int]], rank: int) -> Self:
        """Return those of a rank.

        Args:
            hosts: Ranks of each host; of one rank each where nothing is added up inside.
            rank: The one that asks.

        """
        home = next(ranks for ranks in hosts if rank in ranks)
        place = list(home).index(rank)
        others = [ranks for ranks in hosts if ranks is not home]
        owners = [[own] for own in home]
        for ranks in others:
            for k, owner in enumerate(ranks):
                owners[k % len(home)].append(owner)
        elsewhere = sorted(ranks[place % len(ranks)] for ranks in others)
        return cls(place=place, owners=tuple(map(tuple, owners)), elsewhere=tuple(elsewhere))
