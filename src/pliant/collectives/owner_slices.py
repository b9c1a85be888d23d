"""Vectors packed by owner, in slices of the ranks of a host that handle them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pliant.collectives.pairwise import rotated_peers, swap
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.layouts.aggregators import Aggregators

__all__ = ["OwnerSlices", "hosts_of"]


def hosts_of(comm: Comm) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host of a comm with levels; of any other each rank is a host by itself."""
    if isinstance(comm, HierarchicalComm):
        return tuple(map(tuple, comm.groups))
    return tuple((rank,) for rank in range(comm.size))


class OwnerSlices:
    """Slices of a vector that holds all owners' parts: one for each rank of this host, owner by owner.

    Over a comm with levels, ranks of a host add up and share slices; over any other each rank is a host by itself, and
    has one slice, of everything. A rank's slice begins with its own part.

    Args:
        numels: Elements that each rank owns.
        comm: Ranks.

    """

    def __init__(self, numels: Sequence[int], comm: Comm) -> None:
        levels = comm if isinstance(comm, HierarchicalComm) else None
        self.hosts = hosts_of(comm)
        """Ranks of each host."""
        ways = Aggregators.of(self.hosts, comm.rank)
        self.numels = tuple(numels)
        """Elements that each rank owns."""
        self.flat = comm if levels is None else levels.flat
        """All ranks, alike."""
        self._inside = None if levels is None or levels.inner.size == 1 else levels.inner
        self._place = ways.place
        self.others = sorted(ways.owners[self._place][1:], key=lambda owner: (owner - comm.rank) % comm.size)
        """Owners elsewhere for which this rank adds up, rotated: nobody's first is another's."""
        self.elsewhere = ways.elsewhere
        """Ranks elsewhere that add up for this one, ascending."""
        self.order = [owner for held in ways.owners for owner in held]
        """Owners in the order of the vector."""
        ends = [0, *accumulate(numels[owner] for owner in self.order)]
        self._ranges = dict(zip(self.order, pairwise(ends), strict=True))
        self._slices = [(self._ranges[held[0]][0], self._ranges[held[-1]][1]) for held in ways.owners]
        self._inbox: Tensor | None = None

    @property
    def starts(self) -> tuple[int, ...]:
        """Start of the part of each rank in a vector of this rank."""
        return tuple(self._ranges[owner][0] for owner in range(len(self.numels)))

    def part(self, x: Tensor, owner: int) -> Tensor:
        """Return a view of an owner's part of x, (numel,)."""
        return x[slice(*self._ranges[owner])]

    def sum_inside(self, x: Tensor) -> None:
        """Add up x, (numel,), over the ranks of the host: each has the sum of its slice, the rest is undefined."""
        if self._inside is None:
            return
        mine, peers = self._slice(x, self._place), rotated_peers(self._inside)
        if self._inbox is None:
            self._inbox = x.new_empty(len(peers), mine.numel())
        inbox = dict(zip(sorted(peers), self._inbox, strict=True))
        self._swap(x, [(peer, self._slice(x, peer)) for peer in peers], list(inbox.items()))
        for row in inbox.values():
            mine.add_(row)

    @torch.no_grad()
    def spread_inside(self, x: Tensor) -> None:
        """Give every rank of the host all slices of x, (numel,), each from the rank that has it."""
        if self._inside is None:
            return
        mine, peers = self._slice(x, self._place), rotated_peers(self._inside)
        self._swap(x, [(peer, mine) for peer in peers], [(peer, self._slice(x, peer)) for peer in peers])

    def _slice(self, x: Tensor, place: int) -> Tensor:
        return x[slice(*self._slices[place])]

    def _swap(self, x: Tensor, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        if self._inside is not None:
            swap(self._inside, sends, receives, max(b - a for a, b in self._slices) * x.element_size())
