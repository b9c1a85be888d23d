"""Blocks of the tensors in a vector: where they are, and which of them are meant."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.layouts.blocks import BlockDivision, row_blocks

__all__ = ["BlockGrid"]


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
        """Indices of the shapes that have blocks, in order."""
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
        found = [torch.empty(0, dtype=torch.float32, device=x.device)]
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
