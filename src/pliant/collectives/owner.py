"""Gradients on their way to the owners of their parts."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.pairwise import rotated_peers, swap
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm
from pliant.layouts.parts import Range

__all__ = ["ReduceToOwners"]


class ReduceToOwners:
    """Sum over ranks of each part of the gradients, at its owner; all other ranks get its norm.

    Phases:

    1. every rank packs its gradients by owner, and sends each owner one message, large ones one after another;
    2. an owner adds them to its own, in the order of ranks, so that a sum is the same in every run;
    3. all gather the Euclidean norms of the sums: 8 bytes for each part, as many from each rank as from the owner of
       most, in few rounds (`comm_for_rows`).

    Elsewhere the part becomes a stand-in of the same norm, all zero but for its first element. So code that reads norms
    of gradients (torch's clip_grad_norm_, a GradScaler, a logger) gets on every rank the same as without owners, up to
    rounding, whether a parameter is one part or many. If a sum is not finite, its norm is not, and every rank sees that
    in its first element. Bytes: (size-1)/size of the gradients, or of their payloads, out and in per rank if owners
    hold equal parts.

    Args:
        parts: Owner of each part of a parameter, and its range in the vector, in their order and without gaps.
        comm: Ranks to sum over.
        like: The vector, for its dtype and device.
        codec: Codec of gradients on the wire; owners' own are never coded.

    """

    def __init__(self, parts: Sequence[tuple[int, Range]], comm: Comm, *, like: Tensor, codec: Codec | None) -> None:
        self._comm, self._codec = comm, codec
        self._held: list[list[Range]] = [[] for _ in range(comm.size)]  # per owner, where its parts lie in the vector
        for owner, part in parts:
            self._held[owner].append(part)
        self._cuts = [0, *accumulate(sum(b - a for a, b in held) for held in self._held)]
        self._packed = torch.empty_like(like)  # (numel,), by owner
        self._peers = rotated_peers(comm)
        mine = self._part(comm.rank)
        self._inbox = {peer: self._message(mine) for peer in self._peers if self._held[comm.rank]}
        self._outbox = {peer: self._message(self._part(peer)) for peer in self._peers if self._held[peer]}
        if codec is None:  # what is packed travels as it is
            self._outbox = {peer: self._part(peer) for peer in self._outbox}
        self._largest_bytes = max(self._num_bytes(self._part(rank)) for rank in range(comm.size))
        most = max(map(len, self._held))
        self._norms = torch.zeros(comm.size, most, dtype=torch.float64, device=like.device)
        self._own_norms = torch.zeros(most, dtype=torch.float64, device=like.device)
        self._gather = comm_for_rows(comm, self._own_norms.nbytes, like.device)
        theirs = [(r * most + k, part) for r in self._peers for k, part in enumerate(self._held[r])]
        others = [(at, start) for at, (start, stop) in theirs if stop > start]
        rows = torch.tensor(others, dtype=torch.int64).reshape(-1, 2).t().contiguous().to(like.device)
        self._norms_of_others, self._first_of_others = rows

    def __call__(self, x: Tensor, seed: int) -> None:
        """Replace x, (numel,), by sums where this rank is the owner, and by stand-ins elsewhere."""
        comm = self._comm
        for rank, held in enumerate(self._held):
            at = self._cuts[rank]
            for start, stop in held:
                self._packed[at : at + stop - start].copy_(x[start:stop])
                at += stop - start
        if self._codec is not None:
            for peer, payload in self._outbox.items():
                self._codec.encode(self._part(peer), payload, seed + comm.rank + 1)
        swap(comm, list(self._outbox.items()), list(self._inbox.items()), self._largest_bytes)
        total = self._part(comm.rank)
        for _, message in sorted(self._inbox.items()):
            total.add_(message) if self._codec is None else self._codec.decode_add(message, total)
        self._tell_norms(total)
        self._unpack(x, total)

    def _tell_norms(self, total: Tensor) -> None:
        at = 0
        for k, (start, stop) in enumerate(self._held[self._comm.rank]):
            self._own_norms[k] = torch.linalg.vector_norm(total[at : at + stop - start], dtype=torch.float64)
            at += stop - start
        self._gather.all_gather(self._norms.view(-1), self._own_norms).wait()

    def _unpack(self, x: Tensor, total: Tensor) -> None:
        x.zero_()
        x.index_copy_(0, self._first_of_others, self._norms.view(-1)[self._norms_of_others].to(x.dtype))
        at = 0
        for start, stop in self._held[self._comm.rank]:
            x[start:stop].copy_(total[at : at + stop - start])
            at += stop - start
        x[:1].add_(self._norms.sum() * 0)  # NaN if anything was not finite, anywhere

    def _part(self, rank: int) -> Tensor:
        return self._packed[self._cuts[rank] : self._cuts[rank + 1]]

    def _message(self, part: Tensor) -> Tensor:
        if self._codec is None:
            return torch.empty_like(part)
        return torch.empty(self._num_bytes(part), dtype=torch.uint8, device=part.device)

    def _num_bytes(self, part: Tensor) -> int:
        return part.nbytes if self._codec is None else self._codec.nbytes(part.numel())
