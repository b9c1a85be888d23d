"""Parts of the kernels in plain torch: blocks, sums in the order of the C kernels, codes in bytes, and residuals."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["in_blocks", "keep", "lane_sums", "lengths_of", "pack", "store", "unpack", "with_residual"]

_LANES = 16


def in_blocks(x: Tensor, block: int, fill: float) -> Tensor:
    """Return x as (num_blocks, block), the last one filled up."""
    return pad(x, (0, -x.numel() % block), value=fill).view(-1, block)


def lengths_of(x: Tensor, block: int) -> Tensor:
    """Return how many elements of x each block has, float32 (num_blocks,)."""
    lengths = torch.full((-(-x.numel() // block),), float(block), dtype=torch.float32, device=x.device)
    lengths[-1] = x.numel() - block * (lengths.numel() - 1)
    return lengths


def lane_sums(rows: Tensor) -> Tensor:
    """Return the sums of rows, (num_blocks, block): element i in column i % 16, then halves onto halves."""
    lanes = torch.zeros(len(rows), _LANES, dtype=torch.float32, device=rows.device)
    for part in rows.view(len(rows), -1, _LANES).unbind(1):
        lanes += part
    while lanes.shape[1] > 1:
        left, right = lanes.chunk(2, dim=1)
        lanes = left + right
    return lanes[:, 0]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return codes, uint8 (num,), of 1, 2 or 4 bits in bytes, the first in the lowest bits."""
    shifts = bits * torch.arange(8 // bits, device=codes.device, dtype=torch.uint8)
    return (in_blocks(codes, 8 // bits, 0.0) << shifts).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the codes in bytes, uint8, up to the end of the last byte."""
    shifts = bits * torch.arange(8 // bits, device=packed.device, dtype=torch.uint8)
    return ((packed[:, None] >> shifts) & ((1 << bits) - 1)).view(-1)


def store(values: Tensor, acc: Tensor, *, add: bool) -> None:
    values = values.reshape(-1)[: acc.numel()]
    if add:
        acc.add_(values)
    else:
        acc.copy_(values)


def with_residual(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else x + residual


def keep(residual: Tensor, x: Tensor, decoded: Tensor) -> None:
    """Set residual to what the payload does not carry of x; where the payload is poisoned, the residual stays."""
    residual.copy_(torch.where(decoded.isfinite(), x - decoded, residual))
