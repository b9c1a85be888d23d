"""Hadamard rotation of blocks: an orthogonal map after which no element of a block sticks out."""

import functools

import torch
from torch import Tensor

from pliant.layouts.shards import ROTATED_BLOCK

__all__ = ["rotate"]


def rotate(x: Tensor) -> None:
    """Multiply each whole block of x, float32 (numel,), by the normalized Hadamard matrix, in place.

    H is symmetric and H H = I, so that a second call undoes the first. Elements behind the last whole block stay. Jia
    et al., SDP4Bit (arXiv:2410.15526): quantization errors of a rotated block are spread over it.
    """
    whole = x.numel() // ROTATED_BLOCK * ROTATED_BLOCK
    if whole:
        blocks = x[:whole].view(-1, ROTATED_BLOCK)
        blocks.copy_(blocks @ _hadamard(ROTATED_BLOCK, x.device))


@functools.cache
def _hadamard(size: int, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float32)
    while len(matrix) < size:  # Sylvester's construction
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / size**0.5).to(device)
