"""Halves of a coded average: to the owners of parts, who add up, and from them to all.

The first by itself is a reduce-scatter, the second an all-gather; `CompressedAverage` is both, piece by piece.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec, encode_feedback
from pliant.collectives.pairwise import rotated_peers
from pliant.collectives.pieces import CodedPiece, Parts, payload_offsets
from pliant.comm.base import Comm, PeerSlots, PeerTensors, Work
from pliant.comm.standing import StandingReceives

__all__ = ["FromOwners", "OwnerGather", "OwnerReduction", "ToOwners"]


class OwnerReduction(ABC):
    """Base of first halves: ranks send the pieces of each part, coded, to its owner, who adds them up.

    Args:
        codec: Any codec; biased ones should be used with a residual.
        parts: Pieces of all parts.
        comm: Ranks that exchange; rank p owns part p.
        device: Device of the buffers.

    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        self._codec, self._comm, self._parts = codec, comm, parts
        self._peers, self._mine = rotated_peers(comm), parts[comm.rank]
        peers = sorted(self._peers)
        self._receives = [_slots(codec, [(peer, piece) for peer in peers], device) for piece in self._mine]

    @abstractmethod
    def send(self, x: Tensor, residual: Tensor | None, seed: int) -> list[list[Work]]:
        """Encode and send the others' parts of x, float32 (numel,); return what is under way, to be given back.

        With residual, (numel,), errors are fed back. The seed is this rank's own.
        """

    @abstractmethod
    def receive(self, k: int, posted: list[list[Work]]) -> Tensor:
        """Wait for the pieces k of all others; return their payloads, uint8 (size - 1, row), in the order of ranks."""

    def add(self, k: int, posted: list[list[Work]], total: Tensor) -> None:
        """Add to total, this owner's piece k, the pieces of all others, in the order of ranks."""
        self.receive(k, posted)
        for _, payload in self._receives[k]:
            self._codec.decode_add(payload, total)

    def stand(self, k: int) -> None:  # noqa: B027  most halves do nothing
        """Note that pieces k have been added up, so that the next ones may come."""

    def wait(self, posted: list[list[Work]]) -> None:
        """Wait for all exchanges, after which payloads may be overwritten."""
        for work in chain.from_iterable(posted):
            work.wait()

    def _encode(self, piece: CodedPiece, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        if residual is None:
            self._codec.encode(piece.of(x), payload, seed)
        else:
            encode_feedback(self._codec, piece.of(x), piece.of(residual), payload, seed)


class ToOwners(OwnerReduction):
    """First half: every rank sends the pieces of each part, coded, to its owner, who adds them up.

    An owner's own pieces are not coded: they have no error and need no bytes. In a round each rank sends a piece to one
    owner and receives one from another rank. No two ranks send to the same owner, since flows that meet at a host's
    link overflow its queue, and TCP loses 5 to 15 % by that. All messages are pairwise: Gloo's all-to-all takes up to
    twice its bound. An exchange is posted as soon as there is something to send, so that later pieces are encoded while
    earlier ones are on the wire. Bytes: the payloads of all other parts out, (size-1) payloads of the own one in.

    With `stands`, receives of a piece stand since it was added up in the exchange before, where that may be
    (`StandingReceives`).

    Note [sends and receives of a round are one operation]: on an in-order queue, as NCCL has, a receive that is posted
    before the send of the same round waits for a peer that waits too. So every receive is in the same `exchange` as the
    send of its round, or in a later one, on every rank.
    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device, *, stands: bool = False) -> None:
        super().__init__(codec, parts, comm, device)
        may_stand = stands and not comm.is_in_order
        self._standing = StandingReceives(comm, self._receives, pipelined=True) if may_stand else None
        self._sends = [_slots(codec, _pieces(parts, k, self._peers), device) for k in range(_num_rounds(parts))]

    def send(self, x: Tensor, residual: Tensor | None, seed: int) -> list[list[Work]]:
        posted: list[list[Work]] = [[] for _ in self._sends]
        if self._standing is not None:
            for k in range(len(self._mine)):
                posted[k].append(self._standing.take(k))
        pairs = zip(self._peers, reversed(self._peers), strict=True)
        # On an accelerator an exchange waits for a copy to the host, so all owners share one.
        for pair in (None,) if is_accelerator(x.device) else pairs:
            for k, works in enumerate(posted):
                sends, receives = self._messages(k, pair)
                for owner, payload in sends:
                    self._encode(self._parts[owner][k], x, residual, payload, seed)
                if sends or receives:
                    works.append(self._exchange(k, sends, receives))
        return posted

    def stand(self, k: int) -> None:
        if self._standing is not None:
            self._standing.stand(k)

    def _exchange(self, k: int, sends: PeerTensors, receives: PeerTensors) -> Work:
        if self._standing is not None:
            return self._standing.send(sends, k)
        return self._comm.exchange(sends, receives, turn=k)

    def receive(self, k: int, posted: list[list[Work]]) -> Tensor:
        for work in posted[k]:
            work.wait()
        return self._receives[k].whole.view(len(self._peers), -1)

    def _messages(self, k: int, pair: tuple[int, int] | None) -> tuple[PeerTensors, PeerTensors]:
        """Return the payloads k to and from all others, or to the first of a pair and from the second."""
        sends, receives = self._sends[k], self._receives[k] if k < len(self._mine) else ()
        if pair is None:
            return sends, receives
        return [each for each in sends if each[0] == pair[0]], [each for each in receives if each[0] == pair[1]]


class OwnerGather(ABC):
    """Base of second halves: every owner sends the same coded pieces to all others, who keep them for a while.

    Args:
        codec: Any codec.
        parts: Pieces of all parts.
        comm: Ranks that exchange; rank p owns part p.
        device: Device of the buffers.

    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        self._codec, self._comm, self._parts = codec, comm, parts
        self._peers = rotated_peers(comm)
        self.num_rounds = _num_rounds(parts)
        """Number of pieces of the part that has most."""
        self.payloads: list[list[Tensor]] = []
        """Payloads of each rank's pieces, in the order of ranks; this rank writes its own before it sends them."""

    @abstractmethod
    def send(self, k: int) -> Work:
        """Send this owner's payload k, if it has one, to all, and receive payload k of all others, or later at once."""

    def swap(self, x: Tensor, seed: int) -> None:
        """Encode this owner's pieces of x, float32 (numel,), and receive the payloads of all others.

        The seed is the same on all ranks.
        """
        rank, posted = self._comm.rank, list[Work]()
        for k in range(self.num_rounds):
            if k < len(self._parts[rank]):
                self._codec.encode(self._parts[rank][k].of(x), self.payloads[rank][k], seed + rank + 1)
            posted.append(self.send(k))
        for work in posted:
            work.wait()

    def decode(self, posted: Sequence[Work], x: Tensor) -> None:
        """Decode all others' pieces over x, float32 (numel,), as the rounds come to their end."""
        for k, work in enumerate(posted):
            work.wait()
            for peer in self._peers:
                if k < len(self._parts[peer]):
                    self.decode_piece(peer, k, x)
            self.stand(k)

    def stand(self, k: int) -> None:  # noqa: B027  most halves do nothing
        """Note that payloads k have been decoded, so that the next ones may come."""

    def decode_piece(self, rank: int, k: int, x: Tensor, *, add: bool = False) -> None:
        """Decode one rank's payload k into its place in x, or add it there."""
        decode = self._codec.decode_add if add else self._codec.decode
        decode(self.payloads[rank][k], self._parts[rank][k].of(x))


class FromOwners(OwnerGather):
    """Second half: every owner sends the same coded pieces to all others, who keep them until the next exchange.

    A round has one piece of each owner, sent and received in one `exchange`
    (Note [sends and receives of a round are one operation]).
    Bytes: (size-1) payloads of the own part out, the payloads of all other parts in. With `stands`, receives stand
    since `decode` in the exchange before, where that may be, and payloads are kept no longer.
    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device, *, stands: bool = False) -> None:
        super().__init__(codec, parts, comm, device)
        self._receives = [_slots(codec, _pieces(parts, k, self._peers), device) for k in range(self.num_rounds)]
        self._standing = StandingReceives(comm, self._receives, pipelined=True) if stands else None
        rounds = [dict(slots) for slots in self._receives]
        self.payloads = [[payloads[rank] for payloads in rounds if rank in payloads] for rank in range(comm.size)]
        own = [torch.empty(codec.nbytes(piece.numel), dtype=torch.uint8, device=device) for piece in parts[comm.rank]]
        self.payloads[comm.rank] = own

    def send(self, k: int) -> Work:
        own = self.payloads[self._comm.rank]
        sends = [(peer, own[k]) for peer in self._peers if k < len(own)]
        if self._standing is not None:
            return self._standing.exchange(sends, k)
        return self._comm.exchange(sends, self._receives[k], turn=k, tag=1)

    def stand(self, k: int) -> None:
        if self._standing is not None:
            self._standing.stand(k)


def _pieces(parts: Parts, k: int, ranks: Sequence[int]) -> list[tuple[int, CodedPiece]]:
    """Return piece k of each of these ranks that has one."""
    return [(rank, parts[rank][k]) for rank in ranks if k < len(parts[rank])]


def _slots(codec: Codec, pieces: Sequence[tuple[int, CodedPiece]], device: torch.device) -> PeerSlots:
    """Return room for a payload of each rank's piece, in one tensor; each begins at a multiple of 16 bytes."""
    *starts, end = payload_offsets(codec, [piece for _, piece in pieces])
    placed = zip(pieces, starts, strict=True)
    ranges = [(rank, start, start + codec.nbytes(piece.numel)) for (rank, piece), start in placed]
    return PeerSlots(torch.empty(end, dtype=torch.uint8, device=device), ranges)


def _num_rounds(parts: Parts) -> int:
    return max(len(part) for part in parts)
