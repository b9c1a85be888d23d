"""Scatter - reduce - gather with a codec in both directions."""

from collections.abc import Generator
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec, FusedOwner, all_finite, encode_feedback, finite_flag, keep_unless
from pliant.collectives.halves import FromOwners, OwnerGather, OwnerReduction, ToOwners
from pliant.collectives.pieces import cut_evenly, piece_bytes, pieces_of
from pliant.collectives.rounds import RoundsComm
from pliant.collectives.symmetric import GatherFromOwners, SwapToOwners
from pliant.comm.base import Comm, Work
from pliant.comm.works import ends_what_is_sent
from pliant.layouts.rounds import codes_in_rounds, forwards

__all__ = ["CompressedAverage"]


class CompressedAverage:
    """Mean over ranks of float32 vectors that are sent in a codec's payloads.

    Rank j owns the j-th part of the vector; parts are cut at multiples of the codec's granularity, and each into pieces
    of at most `chunk_bytes` of float32, so that coding, the wire and adding up overlap. Phases, per piece:

    1. every rank encodes its piece and sends it to the owner;
    2. the owner adds the others' pieces, in the order of ranks, to its own, which is not coded and so has no error;
    3. it divides, encodes the mean and sends the same bytes to all;
    4. every rank, the owner too, decodes those bytes: results are equal to the bit.

    The first two are `ToOwners`, the others `FromOwners`; over a comm that prefers collectives `SwapToOwners` and
    `GatherFromOwners`. Over Gloo receives stand from one exchange to the next (`StandingReceives`). Bytes: 2
    (size-1)/size of the payload out and in per rank. Short payloads among more than 26 ranks are gathered in few rounds
    (`RoundsComm`), and come to their owners so too, with `may_forward`, where that pays; then their bytes count in each
    round. Results are the same to the bit.

    One residual holds what this rank has not delivered to the *sum* yet: for other owners' parts the errors of its own
    payloads, and for its own part (where it sends nothing) the error of the coded mean, times size. So size * (sum of
    results) + (sum over ranks of residuals) = sum of all inputs, wherever buckets are cut.

    Gan et al., BAGUA (arXiv:2107.01499, C_LP_S); Tang et al., DoubleSqueeze (arXiv:1905.05957).

    Args:
        codec: Any codec; biased ones should be used with a residual.
        numel: Elements of each vector.
        comm: Ranks to average over.
        chunk_bytes: Uncompressed bytes of a piece; on an accelerator see `piece_bytes`.
        owner_feedback: Whether owners keep the error of the mean as well.
        device: Device of the buffers.
        may_forward: Whether payloads may come to their owners by way of other ranks: fewer messages, more bytes.

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
        may_forward: bool = False,
    ) -> None:
        self._codec, self._comm = codec, comm
        self._owner_feedback = owner_feedback
        ranges = cut_evenly(numel, comm.size, codec.granularity)
        parts = [pieces_of(part, piece_bytes(chunk_bytes, device), codec.granularity) for part in ranges]
        self._mine = parts[comm.rank]
        to, back = comm, comm
        largest = max(part.numel for part in ranges)
        payload_bytes = codec.nbytes(largest)
        if not comm.prefers_collectives and codes_in_rounds(payload_bytes, largest, chunk_bytes, comm.size):
            back = RoundsComm(comm, device)
            to = back if may_forward and forwards(payload_bytes, comm.size) else comm
        self._overlaps = back is comm
        self._to_owners: OwnerReduction = (
            SwapToOwners(codec, parts, to, device)
            if to.prefers_collectives
            else ToOwners(codec, parts, to, device, stands=True)
        )
        self._from_owners: OwnerGather = (
            GatherFromOwners(codec, parts, back, device)
            if back.prefers_collectives
            else FromOwners(codec, parts, back, device, stands=True)
        )
        self._mean = self._from_owners.payloads[comm.rank]

    @cached_property
    def _error(self) -> Tensor:
        """Room for the error of a mean; where owners' steps are fused, nobody asks for it."""
        longest = max((piece.numel for piece in self._mine), default=0)
        return torch.empty(longest, dtype=torch.float32, device=self._mean[0].device)

    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None:
        """Replace x, float32 (numel,), by the mean over ranks. With residual, (numel,), errors are fed back.

        The seed is the same on all ranks. If x or the mean is not finite, or overflows the codec, results are poisoned
        on every rank that decodes them, and the residual keeps its value there.
        """
        for _ in self.stages(x, seed, residual):
            pass

    def stages(self, x: Tensor, seed: int, residual: Tensor | None = None) -> Generator[None]:
        """Do the same in three stages: 1; 2 and 3; 4. The second one's messages have an order of their own.

        All is one stage where payloads go by way of other ranks, whose messages have one order.
        """
        if self._comm.size == 1:
            return
        scattered, gathered = self._to_owners.send(x, residual, seed + self._comm.rank + 1), list[Work]()
        under_way = [*chain.from_iterable(scattered)]
        with ends_what_is_sent(under_way):
            if self._overlaps:
                yield
            for k in range(self._from_owners.num_rounds):
                if k < len(self._mine):
                    piece = self._mine[k]
                    owed = None if residual is None else piece.of(residual)
                    self._own_step(k, scattered, piece.of(x), owed, seed)
                    self._to_owners.stand(k)
                gathered.append(self._from_owners.send(k))
                under_way.append(gathered[-1])
            if self._overlaps:
                yield
            self._from_owners.decode(gathered, x)
            self._to_owners.wait(scattered)

    def _own_step(self, k: int, scattered: list[list[Work]], total: Tensor, owed: Tensor | None, seed: int) -> None:
        """Add up piece k of this owner, and replace it by the decoded mean."""
        if isinstance(self._codec, FusedOwner) and self._codec.fuses(total):
            payloads, feedback = self._to_owners.receive(k, scattered), self._owner_feedback
            self._codec.encode_mean(total, owed, payloads, self._mean[k], seed, feedback=feedback)
            return
        self._add_residual(total, owed)
        self._to_owners.add(k, scattered, total)
        self._take_mean(k, total, owed, seed)

    def _add_residual(self, total: Tensor, owed: Tensor | None) -> None:
        """Add to this owner's piece what it has not delivered of it, unless the piece is not finite."""
        if owed is not None and is_accelerator(total.device):  # where the host must not wait for the answer
            total.add_(torch.where(finite_flag(total), owed, 0.0))
        elif owed is not None and all_finite(total):
            total.add_(owed)

    def _take_mean(self, k: int, total: Tensor, owed: Tensor | None, seed: int) -> None:
        """Divide the sum of piece k of this owner, and encode and decode its mean.

        A mean that is not finite, or overflows the codec, leaves the residual alone: no step will use it.
        """
        total.div_(self._comm.size)
        error = None if owed is None else self._error[: len(total)].zero_()
        if error is not None and self._owner_feedback:
            encode_feedback(self._codec, total, error, self._mean[k], seed)
        else:
            self._codec.encode(total, self._mean[k], seed)
        self._codec.decode(self._mean[k], total)
        if owed is not None and error is not None:
            keep_unless(finite_flag(total), owed, error.mul_(self._comm.size))
