"""From the diagonal of a Hessian to means over structures: blocks to choose by, and views to report."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Structure", "block_means", "shrink_and_clip", "view_means"]

Structure = Literal["elements", "rows", "columns", "channels", "heads"]


def block_means(diagonal: Tensor, numels: Sequence[int]) -> Tensor:
    """Return the mean of the positive part over each block, float32 (num_blocks,).

    Args:
        diagonal: Of any shape; blocks are contiguous in its row-major order.
        numels: Elements of each block, in order.

    Raises:
        ValueError: The blocks do not make up the tensor.

    """
    if sum(numels) != diagonal.numel() or min(numels, default=1) < 1:
        raise ValueError(
            f"{len(numels)} blocks of {sum(numels)} elements do not divide a tensor of {diagonal.numel()} elements; "
            "each block needs an element, and each element a block."
        )
    positive = diagonal.detach().float().clamp(min=0).flatten()
    if not numels:
        return positive
    size = numels[0]
    whole = next((k for k, n in enumerate(numels) if n != size), len(numels))
    if whole >= len(numels) - 1:  # equal ones, and perhaps a shorter end
        first = positive[: whole * size].view(whole, size).mean(1)
        rest = positive[whole * size :]
        return torch.cat([first, rest.mean().view(1)]) if rest.numel() else first
    lengths = torch.tensor(numels, device=positive.device)
    return torch.segment_reduce(positive, "mean", lengths=lengths)


def shrink_and_clip(means: Tensor, numels: Sequence[int], *, shrink: float, clip: float) -> Tensor:
    """Return block means that can be relied on: drawn towards the mean of their parameter, and none far from it.

    (1 - shrink) h_b + shrink h, between h / clip and clip h, with h the mean over all elements.

    Args:
        means: (num_blocks,), not negative.
        numels: Elements of each block.
        shrink: From 0, which leaves blocks as they are, to 1, which makes all of them the mean.
        clip: At least 1.

    """
    whole = means @ torch.tensor(numels, dtype=means.dtype, device=means.device) / sum(numels)
    return torch.clamp(torch.lerp(means, whole, shrink), whole / clip, whole * clip)


def view_means(diagonal: Tensor, by: Structure, num: int = 0) -> Tensor:
    """Return the mean of the diagonal over each unit of a structure, as it is, negative parts too: float32 (units,).

    Args:
        diagonal: Of a parameter, (out, in, ...) as torch's layers have them.
        by: "elements": groups of `num` in row-major order, the last may be shorter; "rows" and "columns": along the
            first and the second dimension; "channels": the output channels of a convolution, which are its rows;
            "heads": `num` equal parts of the rows, as projections of attention have them, with queries, keys and values
            in one three for each head.
        num: See `by`.

    Raises:
        ValueError: The parameter has no such structure.

    """
    x = diagonal.detach().float()
    least = {"elements": 0, "rows": 1, "columns": 2, "channels": 3, "heads": 1}[by]
    if x.dim() < least:
        raise ValueError(f"a parameter of shape {tuple(x.shape)} has no {by}; they need {least} dimensions.")
    if by == "columns":
        return x.transpose(0, 1).flatten(1).mean(1)
    if by in ("rows", "channels"):
        return x.reshape(x.shape[0], -1).mean(1)
    if num < 1 or (by == "heads" and x.shape[0] % num):
        raise ValueError(f"a parameter of shape {tuple(x.shape)} is not {num} {by}; give num= as its layer has them.")
    if by == "heads":
        return x.reshape(num, -1).mean(1)
    groups = x.flatten().split(num)
    return torch.stack([group.mean() for group in groups])
