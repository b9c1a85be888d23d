"""Chosen blocks of a vector, averaged in one message that holds nothing else; or each rank's own, gathered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pliant.collectives.averaging import DirectAverage
from pliant.comm.base import Comm
from pliant.spec.blocks import Divided, rows_of

__all__ = ["AgreedBlocks", "BlockGrid", "Carried", "GatheredBlocks", "LedMask", "ScoreMean", "packed", "unpacked"]


class BlockGrid:
    """Where the blocks of several tensors lie that follow one another in a vector.

    Args:
        shapes: Of the tensors.
        parts: Which of them stay dense.
        device: Of the vectors to come.

    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], parts: Divided, device: torch.device) -> None:
        self.parts, self.device = parts, device
        self._tensors = []
        """(offset, rows, tensor's place) of each tensor that has blocks."""
        dense = [torch.empty(0, dtype=torch.int64)]
        starts, numels, layers = list(dense), list(dense), list(dense)
        offset = 0
        for place, (shape, whole) in enumerate(zip(shapes, parts.dense, strict=True)):
            rows = rows_of(shape, parts.selection.block)
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
class Carried:
    """What an exchange of blocks has moved."""

    index: Tensor
    """(num_sent,) places of what this rank has sent, dense tensors included."""
    sent: Tensor
    """(num_sent,) what it has sent there, float32, after rounding to the wire's format."""
    got: tuple[tuple[Tensor, Tensor], ...]
    """Places, and the float32 values to be added there: together the mean over ranks."""
    told: Tensor | None
    """(num_told,) means of the scores that travelled behind the values."""
    sound: bool
    """Whether all that came is finite, which all ranks see alike."""


class AgreedBlocks:
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
        self._num_told = 0 if parts.is_whole(ratio) else parts.selection.num_told(parts.num_blocks)
        self._mean = _Mean(parts.message_numel(ratio), parts.selection.value_bits, comm, grid.device)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> Carried:
        """Exchange the chosen blocks, bool (num_blocks,), of x, float32 (numel,), and scores, (at most num_told,).

        A rank that is poisoned sends NaN in all places.
        """
        index = torch.cat([self._grid.dense, self._grid.elements(chosen)])
        message = self._mean.message
        message.zero_()
        sent = message[: len(index)].copy_(x[index]).to(torch.float32, copy=True)
        tail = message[len(message) - self._num_told :] if self._num_told else None
        if tail is not None:
            tail[: len(told)].copy_(told)
        sound = self._mean(poisoned=poisoned)
        values = message[: len(index)].float()
        scores = None if tail is None else tail[: len(told)].float()
        return Carried(index=index, sent=sent, got=((index, values),), told=scores, sound=sound)


class GatheredBlocks:
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
        self._dense = _Mean(parts.message_numel(ratio), parts.selection.value_bits, comm, grid.device)
        size = parts.payload_bytes(ratio)
        self._own = torch.zeros(size, dtype=torch.uint8, device=grid.device)
        self._all = torch.empty(comm.size * size, dtype=torch.uint8, device=grid.device)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> Carried:
        """Exchange; see `AgreedBlocks`. Scores are not told."""
        grid, dtype = self._grid, self._dense.message.dtype
        mask_bytes = grid.parts.mask_bytes
        of_blocks = grid.elements(chosen)
        self._own.zero_()
        self._own[:mask_bytes] = packed(chosen, mask_bytes)
        sent = self._own[mask_bytes:].view(dtype)[: len(of_blocks)].copy_(x[of_blocks])
        index, values = torch.cat([grid.dense, of_blocks]), sent.to(torch.float32, copy=True)
        if poisoned:
            sent.fill_(torch.nan)
        self._comm.all_gather(self._all, self._own).wait()
        got: list[tuple[Tensor, Tensor]] = []
        sound = True
        for row in self._all.view(self._comm.size, -1):
            theirs = grid.elements(unpacked(row[:mask_bytes], len(grid.starts)))
            means = row[mask_bytes:].view(dtype)[: len(theirs)].float().div_(self._comm.size)
            sound = sound and bool(means.isfinite().all())
            got.append((theirs, means))
        message = self._dense.message.zero_()
        dense = message[: len(grid.dense)].copy_(x[grid.dense]).to(torch.float32, copy=True)
        sound = self._dense(poisoned=poisoned) and sound
        got.append((grid.dense, message[: len(grid.dense)].float()))
        return Carried(index=index, sent=torch.cat([dense, values]), got=tuple(got), told=None, sound=sound)


class LedMask:
    """One rank's choice for all. Bytes: (n-1) masks out of the rank that leads, one into each other."""

    def __init__(self, grid: BlockGrid, comm: Comm) -> None:
        self._grid, self._comm = grid, comm

    def __call__(self, chosen: Tensor | None, leader: int) -> Tensor:
        """Return the leader's choice, bool (num_blocks,); the others give None."""
        num_bytes = self._grid.parts.mask_bytes
        mask = torch.empty(num_bytes, dtype=torch.uint8, device=self._grid.device)
        if chosen is not None:
            mask.copy_(packed(chosen, num_bytes))
        self._comm.broadcast(mask, leader).wait()
        return unpacked(mask, len(self._grid.starts))


class ScoreMean:
    """Means of scores over ranks, in bfloat16, which has float32's range. Bytes: 2 (n-1)/n of 2 for each block."""

    def __init__(self, num_blocks: int, comm: Comm, device: torch.device) -> None:
        self._mean = _Mean(-(-num_blocks // comm.size) * comm.size, 16, comm, device)

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the means of scores, (num_blocks,), the same on all ranks."""
        message = self._mean.message
        message[: len(scores)].copy_(scores)
        message[len(scores) :].zero_()
        self._mean(poisoned=False)
        return message[: len(scores)].float()


class _Mean:
    """An average in place of a message in the wire's format."""

    def __init__(self, numel: int, bits: int, comm: Comm, device: torch.device) -> None:
        dtype = torch.float32 if bits == 32 else torch.bfloat16
        self.message = torch.empty(numel, dtype=dtype, device=device)
        self._average = DirectAverage(numel, comm, device, dtype=dtype, in_parts=True)

    def __call__(self, *, poisoned: bool) -> bool:
        """Replace the message by its mean; return whether that is finite."""
        if poisoned:
            self.message.fill_(torch.nan)
        self._average(self.message)
        return bool(self.message.isfinite().all())


def packed(chosen: Tensor, num_bytes: int) -> Tensor:
    """Return a bit for each of chosen, bool (num_blocks,), in uint8 (num_bytes,)."""
    bits = np.zeros(num_bytes, np.uint8)
    found = np.packbits(chosen.cpu().numpy())
    bits[: len(found)] = found
    return torch.from_numpy(bits).to(chosen.device)


def unpacked(mask: Tensor, num_blocks: int) -> Tensor:
    """Return what `packed` was given."""
    bits = np.unpackbits(mask.cpu().numpy(), count=num_blocks).astype(bool)
    return torch.from_numpy(bits).to(mask.device)
