"""Gradients on their way to the owners of their parts."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.owner_slices import OwnerSlices
from pliant.collectives.pairwise import rotated_peers, swap
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm
from pliant.layouts.parts import Range

__all__ = ["OwnerWay", "OwnerWays", "ReduceToOwners", "SpreadFromOwners"]


OwnerWay: TypeAlias = Callable[[int, Callable[[int], None]], None]
"""Moves parts of a vector that it knows, given a seed, and what moves them straight, likewise given a seed.

It keeps nothing of who calls it: ranks then drop what they have made at the same time.
"""


class OwnerWays(Protocol):
    """Ways of parts between hosts, other than straight to their owners and straight from them."""

    def to_owners(self, slices: OwnerSlices, x: Tensor, codec: Codec | None) -> OwnerWay:
        """Return what adds up x at the owners of its parts.

        Args:
            slices: Where parts lie in x, and who has them on each host.
            x: Vector of all calls, (numel,); what this rank does not own is left in any state.
            codec: Codec of what travels.

        """
        ...

    def from_owners(self, slices: OwnerSlices, x: Tensor) -> OwnerWay:
        """Return what gives the parts of x, (numel,), which lie with their owners, to one rank of each host."""
        ...


class ReduceToOwners:
    """Sum over ranks of each part of the gradients, at its owner; all other ranks get its norm.

    Phases:

    1. over a comm with levels, ranks of a host first add up, slice by slice (`OwnerSlices`), exactly, so that each part
       leaves the host once; over any other comm this is left out;
    2. every rank sends each owner what it has summed for it, large messages one after another; an owner adds them to
       its own, in the order of ranks, so that a sum is the same in every run; or `ways` say otherwise;
    3. all gather the Euclidean norms of the sums: 8 bytes for each part, as many from each rank as from the owner of
       most, in few rounds (`comm_for_rows`).

    Elsewhere the part becomes a stand-in of the same norm, all zero but for its first element. So code that reads norms
    of gradients (torch's clip_grad_norm_, a GradScaler, a logger) gets on every rank the same as without owners, up to
    rounding, whether a parameter is one part or many. If a sum is not finite, its norm is not, and every rank sees that
    in its first element. Bytes: (size-1)/size of the gradients, or of their payloads, out and in per rank if owners
    hold equal parts. With m ranks on each of h equal hosts (m-1)/m of the gradients inside and (h-1)/h of them, or of
    their payloads, between hosts, from all m ranks together.

    Args:
        parts: Owner of each part of a parameter, and its range in the vector, in their order and without gaps.
        comm: Ranks to sum over.
        like: The vector, for its dtype and device.
        codec: Codec of gradients on the wire between ranks, or with levels between hosts; owners' own are never coded.
        ways: Other ways of the second phase; straight to owners if None.

    """

    def __init__(
        self,
        parts: Sequence[tuple[int, Range]],
        comm: Comm,
        *,
        like: Tensor,
        codec: Codec | None,
        ways: OwnerWays | None = None,
    ) -> None:
        self._rank, self._codec = comm.rank, codec
        self._held: list[list[Range]] = [[] for _ in range(comm.size)]  # per owner, where its parts lie in the vector
        for owner, part in parts:
            self._held[owner].append(part)
        numels = [sum(b - a for a, b in held) for held in self._held]
        self._slices = OwnerSlices(numels, comm)
        self._packed = torch.empty_like(like)  # (numel,), by owner
        self._largest_bytes = max(self._num_bytes(numel) for numel in numels)
        self._way = None if ways is None else ways.to_owners(self._slices, self._packed, codec)
        most = max(map(len, self._held))
        self._norms = torch.zeros(comm.size, most, dtype=torch.float64, device=like.device)
        self._own_norms = torch.zeros(most, dtype=torch.float64, device=like.device)
        self._gather = comm_for_rows(self._slices.flat, self._own_norms.nbytes, like.device)
        theirs = [(r * most + k, part) for r in rotated_peers(comm) for k, part in enumerate(self._held[r])]
        others = [(at, start) for at, (start, stop) in theirs if stop > start]
        rows = torch.tensor(others, dtype=torch.int64).reshape(-1, 2).t().contiguous().to(like.device)
        self._norms_of_others, self._first_of_others = rows

    @property
    def own(self) -> Tensor:
        """Sum of this rank's own parts, one after another, as the last call has left it."""
        return self._part(self._rank)

    def __call__(self, x: Tensor, seed: int) -> None:
        """Replace x, (numel,), by sums where this rank is the owner, and by stand-ins elsewhere."""
        self.sum(x, seed)
        self._tell_norms(self.own)
        self._unpack(x, self.own)

    def sum(self, x: Tensor, seed: int) -> None:
        """Add up x, (numel,), which stays as it is: each rank then has the sum of its parts in `own`."""
        at = 0
        for owner in self._slices.order:
            for start, stop in self._held[owner]:
                self._packed[at : at + stop - start].copy_(x[start:stop])
                at += stop - start
        self._slices.sum_inside(self._packed)
        if self._way is None:
            self._add_up(seed)
        else:
            self._way(seed, self._add_up)

    def _add_up(self, seed: int) -> None:
        """Add up what is packed by straight messages to owners."""
        if self._codec is not None:
            for owner, payload in self._outbox.items():
                self._codec.encode(self._part(owner), payload, seed + self._rank + 1)
        swap(self._slices.flat, list(self._outbox.items()), list(self._inbox.items()), self._largest_bytes)
        total = self.own
        for message in self._inbox.values():
            total.add_(message) if self._codec is None else self._codec.decode_add(message, total)

    @cached_property
    def _inbox(self) -> dict[int, Tensor]:
        mine = self._part(self._rank)
        return {peer: self._message(mine) for peer in self._slices.elsewhere if len(mine)}

    @cached_property
    def _outbox(self) -> dict[int, Tensor]:
        """Messages to owners: of what is packed, which travels as it is, or of payloads."""
        parts = {owner: self._part(owner) for owner in self._slices.others if len(self._part(owner))}
        return parts if self._codec is None else {owner: self._message(part) for owner, part in parts.items()}

    def _tell_norms(self, total: Tensor) -> None:
        at = 0
        for k, (start, stop) in enumerate(self._held[self._rank]):
            self._own_norms[k] = torch.linalg.vector_norm(total[at : at + stop - start], dtype=torch.float64)
            at += stop - start
        self._gather.all_gather(self._norms.view(-1), self._own_norms).wait()

    def _unpack(self, x: Tensor, total: Tensor) -> None:
        x.zero_()
        x.index_copy_(0, self._first_of_others, self._norms.view(-1)[self._norms_of_others].to(x.dtype))
        at = 0
        for start, stop in self._held[self._rank]:
            x[start:stop].copy_(total[at : at + stop - start])
            at += stop - start
        x[:1].add_(self._norms.sum() * 0)  # NaN if anything was not finite, anywhere

    def _part(self, rank: int) -> Tensor:
        return self._slices.part(self._packed, rank)

    def _message(self, part: Tensor) -> Tensor:
        if self._codec is None:
            return torch.empty_like(part)
        return torch.empty(self._codec.nbytes(part.numel()), dtype=torch.uint8, device=part.device)

    def _num_bytes(self, numel: int) -> int:
        return numel * self._packed.element_size() if self._codec is None else self._codec.nbytes(numel)


class SpreadFromOwners:
    """Parts of a vector from their owners to all ranks: the way back of `ReduceToOwners`.

    Every owner sends its part to all other ranks, large parts to one after another. Over a comm with levels it sends it
    to one rank of each other host (`OwnerSlices`), and ranks of a host then give each other what they have got. So each
    part reaches a host once. Bytes: as in `ReduceToOwners`.

    Args:
        numels: Elements that each rank owns.
        comm: Ranks.
        dtype: Dtype of the vector.
        device: Device of the vector.
        ways: Other ways between hosts; straight from owners if None.

    """

    def __init__(
        self,
        numels: Sequence[int],
        comm: Comm,
        *,
        dtype: torch.dtype,
        device: torch.device,
        ways: OwnerWays | None = None,
    ) -> None:
        self._rank, self._slices = comm.rank, OwnerSlices(numels, comm)
        self._packed = torch.empty(sum(numels), dtype=dtype, device=device)
        self._largest_bytes = max(numels) * self._packed.element_size()
        self._way = None if ways is None else ways.from_owners(self._slices, self._packed)

    def part(self, rank: int) -> Tensor:
        """Return a rank's part: to be filled by its owner before a call, and full on all ranks after it."""
        return self._slices.part(self._packed, rank)

    def __call__(self) -> None:
        """Give all ranks all parts. Collective."""
        if self._way is None:
            self._send()
        else:
            self._way(0, lambda _: self._send())
        self._slices.spread_inside(self._packed)

    def _send(self) -> None:
        slices, mine = self._slices, self.part(self._rank)
        sends = [(peer, mine) for peer in sorted(slices.elsewhere, key=self._distance)]
        swap(slices.flat, sends, [(of, self.part(of)) for of in slices.others], self._largest_bytes)

    def _distance(self, peer: int) -> int:
        return (peer - self._rank) % self._slices.flat.size
