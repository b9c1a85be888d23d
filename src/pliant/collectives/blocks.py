"""Chosen blocks of a vector, averaged in one message that holds nothing else; or each rank's own, gathered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from pliant.codecs import Int4
from pliant.collectives.averaging import ShortVectorAverage
from pliant.collectives.compressed import CompressedAverage
from pliant.comm.base import Comm
from pliant.layouts.blocks import BlockDivision, row_blocks
from pliant.spec import ValueBits

__all__ = [
    "BlockAllGather",
    "BlockGrid",
    "BlockResult",
    "LeaderMask",
    "ScoreMean",
    "SharedBlockAverage",
    "pack_bits",
    "unpack_bits",
]

_CODEC = Int4()
"""Of values of 4 bits."""
_DTYPES: Mapping[ValueBits, torch.dtype] = MappingProxyType({32: torch.float32, 16: torch.bfloat16})
_CHUNK_BYTES = 1 << 20
"""As in other averages by owners, unless a plan says otherwise."""


class BlockGrid:
    """Places of the blocks of several tensors that follow one another in a vector.

    Args:
        shapes: Of the tensors.
        parts: Which of them stay dense.
        device: Of the vectors to come.

    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], parts: BlockDivision, device: torch.device) -> None:
        self.parts, self.device = parts, device
        self._tensors = []
        """(offset, rows, tensor's place) of each tensor that has blocks."""
        dense = [torch.empty(0, dtype=torch.int64)]
        starts, numels, layers = list(dense), list(dense), list(dense)
        offset = 0
        for place, (shape, whole) in enumerate(zip(shapes, parts.dense, strict=True)):
            rows = row_blocks(shape, parts.selection.block)
            if rows is None:
                continue
            if whole:
                dense.append(torch.arange(offset, offset + rows.num_rows * rows.numel))
            else:
                numel = torch.tensor(rows.numels)
                starts.append(offset + numel.cumsum(0) - numel)
                numels.append(numel)
                layers.append(torch.full_like(numel, len(self._tensors)))
                self._tensors.append((offset, rows, place))
            offset += rows.num_rows * rows.numel
        self.dense = torch.cat(dense).to(device)
        """(numel_dense,) places of the elements that go in every exchange."""
        self.starts, self.numels, self.layers = (torch.cat(x).to(device) for x in (starts, numels, layers))
        """(num_blocks,) each: first element, elements, and which of the tensors with blocks."""

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the shapes have blocks, in order."""
        return tuple(place for _, _, place in self._tensors)

    @property
    def segments(self) -> Tensor:
        """(num_layers,) elements of a block of each tensor that has blocks."""
        return torch.tensor([rows.segment for _, rows, _ in self._tensors], device=self.device)

    @property
    def layer_numels(self) -> Tensor:
        """(num_layers,) elements of each tensor that has blocks."""
        return torch.tensor([rows.num_rows * rows.numel for _, rows, _ in self._tensors], device=self.device)

    def squares(self, x: Tensor) -> Tensor:
        """Return the squared norm of each block of x, float32 (numel,): (num_blocks,)."""
        found = [torch.empty(0, device=x.device)]
        for offset, rows, _ in self._tensors:
            whole = rows.numel // rows.segment * rows.segment
            of_rows = x[offset : offset + rows.num_rows * rows.numel].view(rows.num_rows, rows.numel)
            norms = [torch.linalg.vector_norm(of_rows[:, :whole].unflatten(1, (-1, rows.segment)), dim=2)]
            if whole < rows.numel:
                norms.append(torch.linalg.vector_norm(of_rows[:, whole:], dim=1, keepdim=True))
            found.append(torch.cat(norms, 1).flatten())  # (rows * per_row,)
        return torch.cat(found).square()

    def elements(self, chosen: Tensor) -> Tensor:
        """Return the places of all elements of chosen blocks, block after block; chosen is bool (num_blocks,)."""
        numels = self.numels[chosen]
        shift = self.starts[chosen] - (numels.cumsum(0) - numels)
        return torch.arange(int(numels.sum()), device=self.device) + shift.repeat_interleave(numels)


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
    """(num_told,) means of the scores that travelled with the values."""
    sound: bool
    """Whether all that came is finite, which all ranks see alike."""


class SharedBlockAverage:
    """The mean of blocks that all ranks have chosen alike, in one message of a fixed size.

    Phases: dense tensors, chosen blocks and scores are packed one after another; an average of the whole; unpacked.
    Bytes: 2 (n-1)/n of the message, whatever is chosen. What room is left at its end is zero.

    Args:
        grid: Of the vectors to come.
        ratio: Of bytes, which gives the message its size.
        comm: Who averages.

    """

    def __init__(self, grid: BlockGrid, ratio: float, comm: Comm) -> None:
        parts = grid.parts
        self._grid = grid
        self._mean = _mean_of(parts.message_numel(ratio), parts.bits(ratio), comm, grid.device)
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
    """The mean of blocks that each rank has chosen by itself, gathered and added up in the order of ranks.

    Bytes: 2 (n-1)/n of the dense tensors, and (n-1) payloads, each a bit for each block and as many elements as the
    ratio pays for. Results are equal to the bit.

    Args:
        grid: Of the vectors to come.
        ratio: Of bytes, which gives the payload its size.
        comm: Who averages.

    """

    def __init__(self, grid: BlockGrid, ratio: float, comm: Comm) -> None:
        parts = grid.parts
        self._grid, self._comm = grid, comm
        self._bits: ValueBits = parts.selection.value_bits
        self._dense = _mean_of(parts.message_numel(ratio), self._bits, comm, grid.device)
        self._values = torch.zeros(parts.room(ratio), device=grid.device)
        size = parts.payload_bytes(ratio)
        self._own = torch.zeros(size, dtype=torch.uint8, device=grid.device)
        self._all = torch.empty(comm.size * size, dtype=torch.uint8, device=grid.device)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> BlockResult:
        """Exchange; see `SharedBlockAverage`. Scores are not told."""
        grid, values, mask_bytes = self._grid, self._values, self._grid.parts.mask_bytes
        of_blocks = grid.elements(chosen)
        values.zero_()[: len(of_blocks)] = torch.nan if poisoned else x[of_blocks]
        self._own[:mask_bytes] = pack_bits(chosen, mask_bytes)
        _write(values, self._own[mask_bytes:], self._bits)
        sent = _read(self._own[mask_bytes:], values, self._bits)[: len(of_blocks)].clone()
        self._comm.all_gather(self._all, self._own).wait()
        got: list[tuple[Tensor, Tensor]] = []
        sound = True
        for row in self._all.view(self._comm.size, -1):
            theirs = grid.elements(unpack_bits(row[:mask_bytes], len(grid.starts)))
            means = _read(row[mask_bytes:], values, self._bits)[: len(theirs)] / self._comm.size
            sound = sound and bool(means.isfinite().all())
            got.append((theirs, means))
        dense, means, dense_sound = self._dense(x[grid.dense], poisoned=poisoned)
        got.append((grid.dense, means))
        index = torch.cat([grid.dense, of_blocks])
        return BlockResult(
            index=index, sent=torch.cat([dense, sent]), means=tuple(got), scores=None, sound=sound and dense_sound
        )


class LeaderMask:
    """One rank's choice for all. Bytes: (n-1) masks out of the rank that leads, one into each other."""

    def __init__(self, grid: BlockGrid, comm: Comm) -> None:
        self._grid, self._comm = grid, comm

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
    """As `_Mean`, in codes both ways. What the codes of a mean lose, its owner has not sent."""

    def __init__(self, numel: int, comm: Comm, device: torch.device) -> None:
        self._message, self._owed = torch.empty(2, numel, device=device)
        self._average = CompressedAverage(
            _CODEC, numel, comm, chunk_bytes=_CHUNK_BYTES, owner_feedback=True, device=device
        )

    def __call__(self, values: Tensor, *, poisoned: bool) -> tuple[Tensor, Tensor, bool]:
        message = self._message.zero_()
        own = message[: len(values)].copy_(values)
        if poisoned:
            message.fill_(torch.nan)
        self._average(message, 0, self._owed.zero_())
        return values - self._owed[: len(values)], own.clone(), bool(message.isfinite().all())


def _mean_of(numel: int, bits: ValueBits, comm: Comm, device: torch.device) -> _Mean | _CodedMean:
    if bits == 4:
        return _CodedMean(numel, comm, device)
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


def pack_bits(chosen: Tensor, num_bytes: int) -> Tensor:
    """Return a bit for each of chosen, bool (num_blocks,), in uint8 (num_bytes,)."""
    bits = np.zeros(num_bytes, np.uint8)
    found = np.packbits(chosen.cpu().numpy())
    bits[: len(found)] = found
    return torch.from_numpy(bits).to(chosen.device)


def unpack_bits(mask: Tensor, num_blocks: int) -> Tensor:
    """Return what `pack_bits` was given."""
    bits = np.unpackbits(mask.cpu().numpy(), count=num_blocks).astype(bool)
    return torch.from_numpy(bits).to(mask.device)
