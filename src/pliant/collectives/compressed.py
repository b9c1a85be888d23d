"""Scatter - reduce - gather with a codec in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pliant.codecs import Codec, all_finite, encode_feedback
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

    Sends are posted as soon as their data is there, receives beforehand, all pairwise: Gloo's all-to-all takes up to
    twice its bound. Each rank serves one owner after another, and no two the same one, since flows that meet at a
    host's link overflow its queue, and TCP loses 5 to 15 % by that. Bytes: 2 (size-1)/size of the payload out and in
    per rank.

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
        # Messages between two ranks keep their order, and a peer sends all its pieces before any mean.
        up = self._post_receives(self._from_worker)
        down = self._post_receives(self._mean_of)
        sent: list[Work] = []
        for peer in self._peers:
            for k, piece in enumerate(self._parts[peer]):
                self._encode(piece, x, residual, self._to_owner[peer][k], seed + self._comm.rank + 1)
                sent.append(self._comm.exchange([(peer, self._to_owner[peer][k])], []))
        for k, piece in enumerate(self._mine):
            for peer in sorted(self._peers):
                up[peer][k].wait()
            self._reduce(k, piece, x, residual, seed)
            sent.append(self._comm.exchange([(peer, self._mean[k]) for peer in self._peers], []))
        for k in range(max(len(part) for part in self._parts)):
            for peer in self._peers:
                if k < len(self._parts[peer]):
                    down[peer][k].wait()
                    self._codec.decode(self._mean_of[peer][k], self._parts[peer][k].of(x))
        for work in sent:
            work.wait()

    def _post_receives(self, buffers: dict[int, list[Tensor]]) -> dict[int, list[Work]]:
        return {peer: [self._comm.exchange([], [(peer, b)]) for b in bs] for peer, bs in buffers.items()}

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
        if owed is not None and all_finite(total):
            total.add_(owed)
        for peer in sorted(self._peers):
            self._codec.decode_add(self._from_worker[peer][k], total)
        total.div_(self._comm.size)
        if owed is None or not all_finite(total):
            self._codec.encode(total, self._mean[k], seed)
        elif not self._owner_feedback:
            self._codec.encode(total, self._mean[k], seed)
            owed.zero_()
        else:
            error = self._error[: piece.numel].zero_()
            encode_feedback(self._codec, total, error, self._mean[k], seed, self._scratch[: piece.numel])
            torch.mul(error, self._comm.size, out=owed)
        self._codec.decode(self._mean[k], total)


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
