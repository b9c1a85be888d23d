"""Average over two levels: sums inside each host, any average between hosts, and back to all ranks of the host."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pliant.collectives.pairwise import rotated_peers
from pliant.comm.base import Comm, PeerTensors
from pliant.comm.hierarchical import HierarchicalComm
from pliant.layouts.host_slices import Range, parts_by_rank, slice_ranges

__all__ = ["HierarchicalAverage"]


class HierarchicalAverage:
    """Mean over ranks of vectors that are added up inside each host, and exchanged between hosts in slices.

    The first `num_slices` ranks of each host own a slice each. Phases:

    1. reduce-scatter inside: every rank sends each part to the rank that adds it up, which may be a helper without a
       slice of its own; helpers send their sums to the owners (`layouts.host_slices` says who adds up what);
    2. each owner scales its slice by num_groups / size, and averages it with the owners of the same slice on the other
       hosts: so the mean over hosts is the mean over ranks also where hosts are of unequal size;
    3. all-gather inside, the same way back.

    With one slice, the first rank of each host exchanges for all of it. Bytes inside a host of n ranks: with n slices
    2 (n-1)/n of the vector out and in per rank; with fewer at most twice the vector. Where the comm prefers collectives
    one slice goes by its reduce and broadcast. Hosts stand for groups of any kind; `between` may have levels as well.

    Args:
        numel: Elements of each vector.
        levels: Ranks inside hosts, and between them.
        num_slices: Slices, at most `levels.num_places`.

    """

    def __init__(self, numel: int, levels: HierarchicalComm, num_slices: int) -> None:
        self._levels, self._comm, self._num_slices = levels, levels.inner, num_slices
        self._slices = slice_ranges(numel, num_slices)
        self._parts = parts_by_rank(numel, num_slices, self._comm.size)
        self._helpers = range(num_slices, self._comm.size)
        self._by_collectives = num_slices == 1 and self._comm.prefers_collectives
        self._inbox: Tensor | None = None

    @property
    def mine(self) -> Range:
        """Range of the slice that this rank exchanges with other hosts; empty where it exchanges none."""
        return self._slices[self._comm.rank] if self._comm.rank < self._num_slices else (0, 0)

    def __call__(self, x: Tensor, between: Callable[[Tensor, Comm], None]) -> None:
        """Replace x, (numel,), any floating dtype, by the mean over all ranks, as far as `between` is exact.

        On owners, between(own slice of x, owners of that slice on all hosts) replaces the slice by the mean over hosts.
        """
        self._add_up(x)
        mine, outer = x[slice(*self.mine)], self._levels.outer
        if outer is not None and self._comm.rank < self._num_slices and (mine.numel() or self._num_slices == 1):
            between(mine.mul_(self._levels.num_groups / self._levels.size), outer)
        self.spread(x)

    def _add_up(self, x: Tensor) -> None:
        """Add up x, (numel,), over the ranks of the host: owners have sums of their slices, the rest is undefined."""
        if self._by_collectives:
            self._comm.reduce(x, 0).wait()
            return
        me, peers = self._comm.rank, rotated_peers(self._comm)
        own = _views(x, self._parts[me])
        inbox = self._inbox_like(x)
        rows = {peer: _split(inbox[k], own) for k, peer in enumerate(sorted(peers))}
        self._swap(
            [(peer, part) for peer in peers for part in _views(x, self._parts[peer])],
            [(peer, row) for peer in reversed(peers) for row in rows[peer]],
        )
        for peer in sorted(peers):
            for part, row in zip(own, rows[peer], strict=True):
                part.add_(row)
        self._swap(*self._helped(x))

    def spread(self, x: Tensor) -> None:
        """Give every rank of the host all slices of x, (numel,), each from its owner."""
        if self._by_collectives:
            self._comm.broadcast(x, 0).wait()
            return
        receives, sends = self._helped(x)
        self._swap(sends, receives)
        me, peers = self._comm.rank, rotated_peers(self._comm)
        self._swap(
            [(peer, part) for peer in peers for part in self._spread_by(me, peer, x)],
            [(peer, part) for peer in reversed(peers) for part in self._spread_by(peer, me, x)],
        )

    def bring_home(self, kept: Tensor) -> None:
        """Move what owners keep of other owners' slices to those, and add it there: kept, (numel,), on owners only.

        Afterwards each keeps numbers of its own slice only, as after an exchange. So what is kept for an element has
        the same sum over the host as before, wherever slices were cut then.
        """
        me, owners = self._comm.rank, [k for k in rotated_peers(self._comm) if k < self._num_slices]
        mine = kept[slice(*self.mine)]
        rows = mine.new_empty(len(owners), len(mine))
        self._swap(
            [(owner, kept[slice(*self._slices[owner])]) for owner in owners],
            [(owner, rows[k]) for k, owner in enumerate(owners)],
        )
        mine.add_(rows.sum(0))
        for owner, (start, stop) in enumerate(self._slices):
            if owner != me:
                kept[start:stop].zero_()

    def _helped(self, x: Tensor) -> tuple[PeerTensors, PeerTensors]:
        """Return what this rank sends to owners of slices as their helper, and what it receives from its helpers."""
        me = self._comm.rank
        if me in self._helpers:
            return list(enumerate(_views(x, self._parts[me]))), []
        held = [(helper, self._parts[helper]) for helper in self._helpers]
        return [], [(helper, x[slice(*parts[me])]) for helper, parts in held if parts]

    def _spread_by(self, source: int, target: int, x: Tensor) -> list[Tensor]:
        """Return the parts of x that one rank sends another in the all-gather: owners have those of their helpers."""
        parts = _views(x, self._parts[source])
        return [part for k, part in enumerate(parts) if source not in self._helpers or k != target]

    def _swap(self, sends: PeerTensors, receives: PeerTensors) -> None:
        sends, receives = ([(peer, part) for peer, part in each if part.numel()] for each in (sends, receives))
        if sends or receives:
            self._comm.exchange(sends, receives).wait()

    def _inbox_like(self, x: Tensor) -> Tensor:
        """Return room for what the others send this rank to add up, (size - 1, elements), made at the first use."""
        if self._inbox is None or self._inbox.dtype != x.dtype:
            numel = sum(stop - start for start, stop in self._parts[self._comm.rank])
            self._inbox = torch.empty(self._comm.size - 1, numel, dtype=x.dtype, device=x.device)
        return self._inbox


def _views(x: Tensor, ranges: Sequence[Range]) -> list[Tensor]:
    return [x[start:stop] for start, stop in ranges]


def _split(row: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    return row.split([part.numel() for part in like]) if like else []
