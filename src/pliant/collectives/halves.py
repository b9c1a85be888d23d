"""The two halves of a coded average: to the owners of parts, who add up, and from them to all.

The first by itself is a reduce-scatter, the second an all-gather; `CompressedAverage` is both, piece by piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pliant.codecs import Codec, encode_feedback
from pliant.collectives.pairwise import rotated_peers
from pliant.comm.base import Comm, Work

__all__ = ["CodedPiece", "FromOwners", "ToOwners", "cut_evenly", "pieces_of"]


@dataclass(frozen=True, kw_only=True)
class CodedPiece:
    """A part of one owner's range, coded on its own. Offsets count from the start of the vector."""

    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Elements of the piece."""
        return self.stop - self.start

    def of(self, x: Tensor) -> Tensor:
        """Return the piece of a vector: a view."""
        return x[self.start : self.stop]


Parts = Sequence[Sequence[CodedPiece]]
"""Pieces of each rank's part of a vector, in the order of ranks; parts need not be equal, and may be empty."""


class ToOwners:
    """Every rank sends the pieces of each part, coded, to its owner, who adds up what comes.

    An owner's own pieces are not coded: fewer errors, and nothing to pay. Each rank serves one owner after another, and
    no two the same one, since flows that meet at a host's link overflow its queue, and TCP loses 5 to 15 % by that.
    Bytes: the payloads of all other parts out, (size-1) payloads of the own one in.

    Args:
        codec: Any codec; biased ones should be used with a residual.
        parts: Pieces of all parts.
        comm: Who exchanges; rank p owns part p.
        device: Where the buffers lie.

    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        self._codec, self._comm, self._parts = codec, comm, parts
        self._peers, self._mine = rotated_peers(comm), parts[comm.rank]
        self._out = {peer: _payloads(codec, parts[peer], device) for peer in self._peers}
        self._in = {peer: _payloads(codec, self._mine, device) for peer in self._peers}
        self._scratch = torch.empty(max((p.numel for part in parts for p in part), default=0), device=device)

    def post(self) -> dict[int, list[Work]]:
        """Post all receives: what `add` waits for."""
        return _receives(self._comm, self._in)

    def send(self, x: Tensor, residual: Tensor | None, seed: int) -> list[Work]:
        """Encode and send what others own of x, float32 (numel,).

        With residual, (numel,), errors are fed back. The seed is this rank's own.
        """
        sent: list[Work] = []
        for peer in self._peers:
            for piece, payload in zip(self._parts[peer], self._out[peer], strict=True):
                if residual is None:
                    self._codec.encode(piece.of(x), payload, seed)
                else:
                    scratch = self._scratch[: piece.numel]
                    encode_feedback(self._codec, piece.of(x), piece.of(residual), payload, seed, scratch)
                sent.append(self._comm.exchange([(peer, payload)], []))
        return sent

    def add(self, k: int, posted: dict[int, list[Work]], total: Tensor) -> None:
        """Add to total, this owner's piece k, what all others have sent for it, in the order of ranks."""
        for peer in sorted(self._peers):
            posted[peer][k].wait()
        for peer in sorted(self._peers):
            self._codec.decode_add(self._in[peer][k], total)


class FromOwners:
    """Every owner sends the same coded pieces to all others, who keep the payloads until the next exchange.

    Bytes: (size-1) payloads of the own part out, the payloads of all other parts in.

    Args:
        codec: Any codec.
        parts: Pieces of all parts.
        comm: Who exchanges; rank p owns part p.
        device: Where the buffers lie.

    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        self._codec, self._comm, self._parts = codec, comm, parts
        self._peers = rotated_peers(comm)
        self.payloads = [_payloads(codec, part, device) for part in parts]
        """Payloads of each rank's pieces, in the order of ranks; this rank writes its own before it sends them."""

    def post(self) -> dict[int, list[Work]]:
        """Post all receives: what `decode` waits for."""
        return _receives(self._comm, {peer: self.payloads[peer] for peer in self._peers})

    def send(self, k: int) -> Work:
        """Send this owner's payload k to all."""
        own = self.payloads[self._comm.rank][k]
        return self._comm.exchange([(peer, own) for peer in self._peers], [])

    def swap(self, x: Tensor, seed: int) -> None:
        """Encode this owner's pieces of x, float32 (numel,), and receive the payloads of all others.

        The seed is the same on all ranks.
        """
        rank, posted, sent = self._comm.rank, self.post(), list[Work]()
        for k, piece in enumerate(self._parts[rank]):
            self._codec.encode(piece.of(x), self.payloads[rank][k], seed + rank + 1)
            sent.append(self.send(k))
        for work in (*(each for works in posted.values() for each in works), *sent):
            work.wait()

    def decode(self, posted: dict[int, list[Work]], x: Tensor, *, add: bool = False) -> None:
        """Decode all others' pieces over x, float32 (numel,), or add them to it, as they come."""
        for k in range(max(len(part) for part in self._parts)):
            for peer in self._peers:
                if k < len(self._parts[peer]):
                    posted[peer][k].wait()
                    self.decode_piece(peer, k, x, add=add)

    def decode_piece(self, rank: int, k: int, x: Tensor, *, add: bool = False) -> None:
        """Decode one rank's payload k into its place in x, once more if need be."""
        decode = self._codec.decode_add if add else self._codec.decode
        decode(self.payloads[rank][k], self._parts[rank][k].of(x))


def cut_evenly(numel: int, count: int, granularity: int) -> list[CodedPiece]:
    """Cut numel elements into so many parts, nearly equal, at multiples of granularity; some may be empty."""
    units = -(-numel // granularity)
    cuts = [min(numel, j * units // count * granularity) for j in range(count)] + [numel]
    return [CodedPiece(start=a, stop=b) for a, b in pairwise(cuts)]


def pieces_of(part: CodedPiece, chunk_bytes: int, granularity: int) -> list[CodedPiece]:
    """Cut a part into pieces of nearly equal size, at most chunk_bytes of float32 each, at multiples of granularity."""
    if part.numel == 0:
        return []
    count = -(-part.numel * 4 // chunk_bytes)
    return [
        CodedPiece(start=part.start + p.start, stop=part.start + p.stop)
        for p in cut_evenly(part.numel, count, granularity)
        if p.numel
    ]


def _payloads(codec: Codec, pieces: Sequence[CodedPiece], device: torch.device) -> list[Tensor]:
    return [torch.empty(codec.nbytes(piece.numel), dtype=torch.uint8, device=device) for piece in pieces]


def _receives(comm: Comm, buffers: dict[int, list[Tensor]]) -> dict[int, list[Work]]:
    return {peer: [comm.exchange([], [(peer, b)]) for b in bs] for peer, bs in buffers.items()}
