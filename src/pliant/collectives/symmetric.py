"""Halves of a coded average by one collective each, where that costs less than messages between pairs of ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.halves import OwnerGather, OwnerReduction
from pliant.collectives.pieces import CodedPiece, Parts, payload_offsets
from pliant.comm.base import Comm, Work

__all__ = ["GatherFromOwners", "SwapToOwners"]


class _Begun:
    """Work of a piece that is sent with the last one."""

    def wait(self) -> None:
        pass


class SwapToOwners(OwnerReduction):
    """First half, as `ToOwners` to the bit: all payloads of all parts in one all-to-all.

    A rank's payloads for an owner lie one after another in a slot, and all slots are as long as the longest. Bytes:
    (size-1) slots out and in; those of `ToOwners` where all parts are of one length, else at most a piece's granularity
    more for each rank.

    Args:
        codec: See `ToOwners`, as for all that follow.
        parts: See there.
        comm: See there.
        device: See there.

    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        super().__init__(codec, parts, comm, device)
        slot = _slot_bytes(codec, parts)
        self._sent = torch.zeros(comm.size, slot, dtype=torch.uint8, device=device)
        self._came = torch.zeros_like(self._sent)
        self._out = {peer: _views(self._sent[peer], codec, parts[peer]) for peer in self._peers}
        self._arrived = {peer: _views(self._came[peer], codec, self._mine) for peer in self._peers}

    def send(self, x: Tensor, residual: Tensor | None, seed: int) -> list[list[Work]]:
        for owner in self._peers:
            for piece, payload in zip(self._parts[owner], self._out[owner], strict=True):
                self._encode(piece, x, residual, payload, seed)
        return [[self._comm.all_to_all(self._came.view(-1), self._sent.view(-1))]]

    def receive(self, k: int, posted: list[list[Work]]) -> Tensor:
        self.wait(posted)
        for peer, payload in self._receives[k]:
            payload.copy_(self._arrived[peer][k])  # rows for one pass over them; short beside the vector
        return self._receives[k].whole.view(len(self._peers), -1)


class GatherFromOwners(OwnerGather):
    """Second half, as `FromOwners` to the bit: all payloads of all owners in one all-gather, behind the last piece.

    Bytes: (size-1) slots out and in, as in `SwapToOwners`.
    """

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        super().__init__(codec, parts, comm, device)
        slot = _slot_bytes(codec, parts)
        self._own = torch.zeros(slot, dtype=torch.uint8, device=device)
        self._all = torch.zeros(comm.size, slot, dtype=torch.uint8, device=device)
        self.payloads = [_views(self._all[rank], codec, part) for rank, part in enumerate(parts)]
        self.payloads[comm.rank] = _views(self._own, codec, parts[comm.rank])

    def send(self, k: int) -> Work:
        if k + 1 < self.num_rounds:
            return _Begun()
        return self._comm.all_gather(self._all.view(-1), self._own)

    def decode(self, posted: Sequence[Work], x: Tensor) -> None:
        for work in posted[-1:]:  # of an empty vector there is none
            work.wait()
        super().decode(posted, x)


def _slot_bytes(codec: Codec, parts: Parts) -> int:
    """Return the bytes of the longest part's payloads, each begun at a multiple of 16."""
    return max(payload_offsets(codec, part)[-1] for part in parts)


def _views(slot: Tensor, codec: Codec, pieces: Sequence[CodedPiece]) -> list[Tensor]:
    starts = payload_offsets(codec, pieces)
    return [slot[start : start + codec.nbytes(piece.numel)] for start, piece in zip(starts, pieces, strict=False)]
