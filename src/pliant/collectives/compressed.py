"""Scatter - reduce - gather with a codec in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec, all_finite, encode_feedback, finite_flag
from pliant.comm.base import Comm, Work

__all__ = ["CompressedAverage"]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of one owner's range, coded on its own. Offsets count from the start of the vector."""

    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, x: Tensor) -> Tensor:
        return x[self.start : self.stop]


class CompressedAverage:
    """Mean over ranks of float32 vectors that are sent in a codec's payloads.

    Rank j owns the j-th part of the vector; parts are cut at multiples of the codec's granularity, and each into pieces
    of at most `chunk_bytes` of float32, so that coding, the wire and adding up overlap. Phases, per piece:

    1. every rank encodes its piece and sends it to the owner;
    2. the owner adds the others' pieces, in the order of ranks, to its own, which is not coded and so has no error;
    3. it divides, encodes the mean and sends the same bytes to all;
    4. every rank, the owner too, decodes those bytes: results are equal to the bit.

    All messages are pairwise: Gloo's all-to-all takes up to twice its bound. A round is one `exchange`, posted as soon
    as there is something to send, so that later rounds are encoded while earlier ones are on the wire. In a round of
    phase 1 each rank serves one owner, and no two the same one, since flows that meet at a host's link overflow its
    queue, and TCP loses 5 to 15 % by that. Bytes: 2 (size-1)/size of the payload out and in per rank.

    Note [sends and receives of a round are one operation]: on an in-order queue, as NCCL has, a receive that is posted
    before the send of the same round waits for a peer that waits too. So every receive is in the same `exchange` as the
    send of its round, or in a later one, on every rank.

    One residual holds what this rank has not delivered to the *sum* yet: for other owners' parts the errors of its own
    payloads, and for its own part (where it sends nothing) the error of the coded mean, times size. So size * (sum of
    results) + (sum over ranks of residuals) = sum of all inputs, wherever buckets are cut.

    Gan et al., BAGUA (arXiv:2107.01499, C_LP_S); Tang et al., DoubleSqueeze (arXiv:1905.05957).

    Args:
        codec: Any codec; biased ones should be used with a residual.
        numel: Elements of each vector.
        comm: Ranks to average over.
        chunk_bytes: Uncompressed bytes of a piece.
        owner_feedback: Whether owners keep the error of the mean as well.
        device: Device of the buffers.

    """

    def __init__(
        self,
        codec: Codec,
        numel: int,
        comm: Comm,
        *,
        chunk_bytes: int,
        owner_feedback: bool,
        device: torch.device,
    ) -> None:
        self._codec, self._comm = codec, comm
        self._owner_feedback = owner_feedback
        self._parts = [_pieces(r, chunk_bytes, codec.granularity) for r in _ranges(numel, comm.size, codec.granularity)]
        self._mine = self._parts[comm.rank]
        self._peers = [(comm.rank + k) % comm.size for k in range(1, comm.size)]  # rotated: nobody's first is another's

        def payload(piece: _Piece) -> Tensor:
            return torch.empty(codec.nbytes(piece.numel), dtype=torch.uint8, device=device)

        # Per peer, per piece: what goes to the owner, what comes to this owner, and what comes back. uint8 (nbytes,).
        self._to_owner = {peer: [payload(p) for p in self._parts[peer]] for peer in self._peers}
        self._from_worker = {peer: [payload(p) for p in self._mine] for peer in self._peers}
        self._mean_of = {peer: [payload(p) for p in self._parts[peer]] for peer in self._peers}
        self._mean = [payload(p) for p in self._mine]
        largest = max((p.numel for part in self._parts for p in part), default=0)
        self._scratch = torch.empty(largest, device=device)
        self._error = torch.zeros(largest, device=device)

    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None:
        """Replace x, float32 (numel,), by the mean over ranks. With residual, (numel,), errors are fed back.

        The seed is the same on all ranks. If x or the mean is not finite, results are poisoned on every rank that
        decodes them, and the residual keeps its value there.
        """
        if self._comm.size == 1:
            return
        scattered = self._scatter(x, seed, residual)
        gathered: list[Work] = []
        for k in range(max(len(part) for part in self._parts)):
            sends = []
            if k < len(self._mine):
                for work in scattered[k]:
                    work.wait()
                self._reduce(k, self._mine[k], x, residual, seed)
                sends = [(peer, self._mean[k]) for peer in self._peers]
            receives = [(peer, self._mean_of[peer][k]) for peer in self._peers if k < len(self._parts[peer])]
            gathered.append(self._comm.exchange(sends, receives))
        for k, work in enumerate(gathered):
            work.wait()
            for peer in self._peers:
                if k < len(self._parts[peer]):
                    self._codec.decode(self._mean_of[peer][k], self._parts[peer][k].of(x))
        for work in chain.from_iterable(scattered):
            work.wait()

    def _scatter(self, x: Tensor, seed: int, residual: Tensor | None) -> list[list[Work]]:
        """Send all pieces to their owners, one owner after another; return what is in flight for each piece's place.

        In a round each rank sends a piece to the rank that is `shift` further, and has one from as far back.
        """
        size, me = self._comm.size, self._comm.rank
        rounds: list[list[Work]] = [[] for _ in range(max(len(part) for part in self._parts))]
        for shift in range(1, size):
            owner, worker = (me + shift) % size, (me - shift) % size
            for k, works in enumerate(rounds):
                sends = []
                if k < len(self._parts[owner]):
                    self._encode(self._parts[owner][k], x, residual, self._to_owner[owner][k], seed + me + 1)
                    sends = [(owner, self._to_owner[owner][k])]
                receives = [(worker, self._from_worker[worker][k])] if k < len(self._mine) else []
                if sends or receives:
                    works.append(self._comm.exchange(sends, receives))
        return rounds

    def _encode(self, piece: _Piece, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        if residual is None:
            self._codec.encode(piece.of(x), payload, seed)
        else:
            scratch = self._scratch[: piece.numel]
            encode_feedback(self._codec, piece.of(x), piece.of(residual), payload, seed, scratch)

    def _reduce(self, k: int, piece: _Piece, x: Tensor, residual: Tensor | None, seed: int) -> None:
        """Add up piece k of this owner, and encode and decode its mean."""
        total = piece.of(x)  # (piece,)
        owed = None if residual is None else piece.of(residual)
        on_device = is_accelerator(x.device)  # where nobody must wait to know whether something is finite
        if owed is not None and on_device:
            total.add_(torch.where(finite_flag(total), owed, 0.0))
        elif owed is not None and all_finite(total):
            total.add_(owed)
        for peer in sorted(self._peers):
            self._codec.decode_add(self._from_worker[peer][k], total)
        total.div_(self._comm.size)
        if owed is not None and on_device:
            self._encode_mean(k, total, owed, seed)
        elif owed is None or not all_finite(total):
            self._codec.encode(total, self._mean[k], seed)
        elif not self._owner_feedback:
            self._codec.encode(total, self._mean[k], seed)
            owed.zero_()
        else:
            error = self._error[: piece.numel].zero_()
            encode_feedback(self._codec, total, error, self._mean[k], seed, self._scratch[: piece.numel])
            torch.mul(error, self._comm.size, out=owed)
        self._codec.decode(self._mean[k], total)

    def _encode_mean(self, k: int, mean: Tensor, owed: Tensor, seed: int) -> None:
        """Encode the mean of piece k, and keep what is owed where it is not finite, without waiting for the device."""
        finite = finite_flag(mean)
        if not self._owner_feedback:
            self._codec.encode(mean, self._mean[k], seed)
            owed.masked_fill_(finite, 0.0)
            return
        error = self._error[: len(mean)].zero_()
        encode_feedback(self._codec, mean, error, self._mean[k], seed, self._scratch[: len(mean)])
        owed.copy_(torch.where(finite, error.mul_(self._comm.size), owed))


def _ranges(numel: int, size: int, granularity: int) -> list[_Piece]:
    """Cut numel elements into one part per rank, nearly equal, at multiples of granularity."""
    units = -(-numel // granularity)
    cuts = [min(numel, j * units // size * granularity) for j in range(size)] + [numel]
    return [_Piece(start=a, stop=b) for a, b in pairwise(cuts)]


def _pieces(part: _Piece, chunk_bytes: int, granularity: int) -> Sequence[_Piece]:
    """Cut a part into pieces of nearly equal size, at most chunk_bytes of float32 each, at multiples of granularity."""
    if part.numel == 0:
        return []
    count = -(-part.numel * 4 // chunk_bytes)
    return [
        _Piece(start=part.start + p.start, stop=part.start + p.stop)
        for p in _ranges(part.numel, count, granularity)
        if p.numel
    ]
