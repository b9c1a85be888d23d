"""Averages of selected blocks of a vector: one message of shared blocks, or a gather of each rank's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pliant.codecs import Int4
from pliant.collectives.averaging import ShortVectorAverage
from pliant.collectives.bit_masks import pack_bits, unpack_bits
from pliant.collectives.block_grid import BlockGrid
from pliant.collectives.compressed import CompressedAverage
from pliant.collectives.rounds import RoundsComm, comm_for_rows
from pliant.comm.base import Comm
from pliant.layouts.blocks import values_bytes
from pliant.layouts.rounds import is_short
from pliant.spec import ValueBits

__all__ = [
    "BlockAllGather",
    "BlockResult",
    "LeaderMask",
    "ScoreMean",
    "SharedBlockAverage",
]

_CODEC = Int4()
"""Codec of values of 4 bits."""
_DTYPES: Mapping[ValueBits, torch.dtype] = MappingProxyType({32: torch.float32, 16: torch.bfloat16})
_CHUNK_BYTES = 1 << 20
"""Bytes of a chunk, as in other averages by owners."""


@dataclass(frozen=True, kw_only=True)
class BlockResult:
    """Result of an exchange of blocks."""

    index: Tensor
    """(num_sent,) places of what this rank has sent, dense tensors included."""
    sent: Tensor
    """(num_sent,) what it has sent there, float32, after rounding to the wire's format."""
    means: tuple[tuple[Tensor, Tensor], ...]
    """Places, and the float32 values to be added there: together the mean over ranks."""
    scores: Tensor | None
    """Means of the scores that were sent with the values, (num_told,)."""
    sound: bool
    """Whether all that came is finite, which all ranks see alike."""


class SharedBlockAverage:
    """Mean of blocks that all ranks have selected alike, in one message of a fixed size.

    Phases: dense tensors, selected blocks and scores are packed one after another; an average of the whole; unpacked.
    Bytes: 2 (n-1)/n of the message, whatever is selected. Unused room at its end is zero.

    Args:
        grid: Of the vectors to come.
        ratio: Of bytes, which determines the size of the message.
        comm: Ranks to average over.
        coded: Makes the average of values of 4 bits, from the arguments of `CompressedAverage`.

    """

    def __init__(
        self, grid: BlockGrid, ratio: float, comm: Comm, *, coded: Callable[..., Any] = CompressedAverage
    ) -> None:
        parts = grid.parts
        self._grid = grid
        self._mean = _mean_of(parts.message_numel(ratio), parts.bits(ratio), comm, grid.device, coded)
        self._scores = ScoreMean(parts.told_numel(ratio), comm, grid.device)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> BlockResult:
        """Exchange the chosen blocks, bool (num_blocks,), of x, float32 (numel,), and scores, which may be none.

        A rank that is poisoned sends NaN in all places.
        """
        index = torch.cat([self._grid.dense, self._grid.elements(chosen)])
        apart = self._scores.numel > 0
        sent, means, sound = self._mean(torch.cat([x[index], told[:0] if apart else told]), poisoned=poisoned)
        scores = None
        if len(told):
            scores = self._scores(told) if apart else means[len(index) :]
        return BlockResult(
            index=index, sent=sent[: len(index)], means=((index, means[: len(index)]),), scores=scores, sound=sound
        )


class BlockAllGather:
    """Mean of blocks that each rank has selected for itself, gathered and added up in the order of ranks.

    Bytes: 2 (n-1)/n of the dense tensors, and (n-1) payloads, each a bit for each block and as many elements as the
    ratio pays for. Results are equal to the bit.

    Args:
        grid: Of the vectors to come.
        ratio: Of bytes, which determines the size of the payload.
        comm: Ranks to average over.

    """

    def __init__(self, grid: BlockGrid, ratio: float, comm: Comm) -> None:
        parts = grid.parts
        self._grid = grid
        self._bits: ValueBits = parts.selection.value_bits
        self._dense = _mean_of(parts.message_numel(ratio), self._bits, comm, grid.device)
        self._values = torch.zeros(parts.room(ratio), dtype=torch.float32, device=grid.device)
        self._behind = slice(parts.mask_bytes, parts.mask_bytes + values_bytes(parts.room(ratio), self._bits))
        size = parts.payload_bytes(ratio)
        self._comm = comm_for_rows(comm, size, grid.device)
        self._own = torch.zeros(size, dtype=torch.uint8, device=grid.device)
        self._all = torch.empty(comm.size * size, dtype=torch.uint8, device=grid.device)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> BlockResult:
        """Exchange; see `SharedBlockAverage`. Scores are not told."""
        grid, values, mask_bytes = self._grid, self._values, self._grid.parts.mask_bytes
        of_blocks = grid.elements(chosen)
        values.zero_()[: len(of_blocks)] = torch.nan if poisoned else x[of_blocks]
        self._own[:mask_bytes] = pack_bits(chosen, mask_bytes)
        _write(values, self._own[self._behind], self._bits)
        sent = _read(self._own[self._behind], values, self._bits)[: len(of_blocks)].clone()
        self._comm.all_gather(self._all, self._own).wait()
        got: list[tuple[Tensor, Tensor]] = []
        sound = True
        for row in self._all.view(self._comm.size, -1):
            theirs = grid.elements(unpack_bits(row[:mask_bytes], len(grid.starts)))
            means = _read(row[self._behind], values, self._bits)[: len(theirs)] / self._comm.size
            sound = sound and bool(means.isfinite().all())
            got.append((theirs, means))
        dense, means, dense_sound = self._dense(x[grid.dense], poisoned=poisoned)
        got.append((grid.dense, means))
        index = torch.cat([grid.dense, of_blocks])
        return BlockResult(
            index=index, sent=torch.cat([dense, sent]), means=tuple(got), scores=None, sound=sound and dense_sound
        )


class LeaderMask:
    """Selection by one rank for all. Bytes: (n-1) masks out of the leader, one into each other rank."""

    def __init__(self, grid: BlockGrid, comm: Comm) -> None:
        in_rounds = is_short(grid.parts.mask_bytes) and not comm.prefers_collectives
        self._grid, self._comm = grid, RoundsComm(comm, grid.device) if in_rounds else comm

    def __call__(self, chosen: Tensor | None, leader: int) -> Tensor:
        """Return the leader's choice, bool (num_blocks,); the others give None."""
        num_bytes = self._grid.parts.mask_bytes
        mask = torch.empty(num_bytes, dtype=torch.uint8, device=self._grid.device)
        if chosen is not None:
            mask.copy_(pack_bits(chosen, num_bytes))
        self._comm.broadcast(mask, leader).wait()
        return unpack_bits(mask, len(self._grid.starts))


class ScoreMean:
    """Means of scores over ranks, in bfloat16, which has float32's range. Bytes: 2 (n-1)/n of 2 for each score."""

    def __init__(self, numel: int, comm: Comm, device: torch.device) -> None:
        self.numel = -(-numel // comm.size) * comm.size
        self._mean = _Mean(self.numel, torch.bfloat16, comm, device)

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the means of scores, (at most numel,), the same on all ranks."""
        return self._mean(scores, poisoned=False)[1]


class _Mean:
    """An average of vectors of at most `numel` elements, in a message of a fixed size."""

    def __init__(self, numel: int, dtype: torch.dtype, comm: Comm, device: torch.device) -> None:
        self._message = torch.empty(numel, dtype=dtype, device=device)
        self._average = ShortVectorAverage(numel, comm, device, dtype=dtype, in_parts=True)

    def __call__(self, values: Tensor, *, poisoned: bool) -> tuple[Tensor, Tensor, bool]:
        """Return what this rank has sent of its values, after rounding; the means; and whether all is finite."""
        message = self._message.zero_()
        own = message[: len(values)]
        sent = own.copy_(values).to(torch.float32, copy=True)
        if poisoned:
            message.fill_(torch.nan)
        self._average(message)
        return sent, own.to(torch.float32, copy=True), bool(message.isfinite().all())


class _CodedMean:
    """Mean as by `_Mean`, coded in both directions. The owner, or root, keeps the error of the coded mean.

    Short payloads among many ranks are forwarded: messages are few, and the selection stays what it is.
    """

    def __init__(self, numel: int, comm: Comm, device: torch.device, coded: Callable[..., Any]) -> None:
        self._message, self._owed = torch.empty(2, numel, dtype=torch.float32, device=device)
        self._average = coded(
            _CODEC, numel, comm, chunk_bytes=_CHUNK_BYTES, owner_feedback=True, device=device, may_forward=True
        )

    def __call__(self, values: Tensor, *, poisoned: bool) -> tuple[Tensor, Tensor, bool]:
        message = self._message.zero_()
        own = message[: len(values)].copy_(values)
        if poisoned:
            message.fill_(torch.nan)
        self._average(message, 0, self._owed.zero_())
        return values - self._owed[: len(values)], own.clone(), bool(message.isfinite().all())


def _mean_of(
    numel: int, bits: ValueBits, comm: Comm, device: torch.device, coded: Callable[..., Any] = CompressedAverage
) -> _Mean | _CodedMean:
    if bits == 4:
        return _CodedMean(numel, comm, device, coded)
    return _Mean(numel, _DTYPES[bits], comm, device)


def _write(values: Tensor, payload: Tensor, bits: ValueBits) -> None:
    """Bring values, float32 (numel,), into the wire's format, uint8."""
    if bits == 4:
        _CODEC.encode(values, payload, 0)
    else:
        payload.view(_DTYPES[bits]).copy_(values)


def _read(payload: Tensor, values: Tensor, bits: ValueBits) -> Tensor:
    """Return what `_write` was given, after rounding; in place of `values`."""
    if bits == 4:
        _CODEC.decode(payload, values)
        return values
    return values.copy_(payload.view(_DTYPES[bits]))
