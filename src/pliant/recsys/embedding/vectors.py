"""Vectors on the wire: float32, bfloat16, or 8-bit integers with a scale for each vector."""

import torch
from torch import Tensor

__all__ = ["empty_wire", "from_wire", "to_wire"]

_LEVELS = 127
_BLOCK_ROWS = 4096
"""Vectors coded at a time, so that what is in between stays in the cache."""


def empty_wire(num: int, dim: int, bits: int, device: torch.device) -> list[Tensor]:
    """Return tensors to receive so many vectors in."""
    if bits == 8:
        scales = torch.empty(num, dtype=torch.float32, device=device)
        return [scales, torch.empty(num, dim, dtype=torch.int8, device=device)]
    return [torch.empty(num, dim, dtype=torch.float32 if bits == 32 else torch.bfloat16, device=device)]


def to_wire(vectors: Tensor, bits: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """Return what is sent for vectors, float32 (num, dim).

    8 bits: x 127 / max|x|, rounded to the nearest integer, or, with a generator, up or down at random so that the mean
    is right (Alistarh et al., QSGD, arXiv:1610.02132, with the maximum norm). A vector that is not finite gets a scale
    that is not, and decodes to NaN, so that everybody sees it.
    """
    if bits == 32:
        return [vectors]
    if bits == 16:
        return [vectors.to(torch.bfloat16)]
    scales = vectors.abs().amax(1) / _LEVELS if vectors.numel() else vectors.new_empty(len(vectors))
    codes = torch.empty(vectors.shape, dtype=torch.int8, device=vectors.device)
    factors = torch.where(scales > 0, 1.0 / scales, 0.0)
    for at in range(0, len(vectors), _BLOCK_ROWS):
        part = slice(at, at + _BLOCK_ROWS)
        scaled = vectors[part] * factors[part, None]
        if generator is None:
            scaled.round_()
        else:
            noise = torch.rand(scaled.shape, dtype=torch.float32, generator=generator, device=scaled.device)
            scaled.add_(noise).floor_()
        codes[part] = scaled.nan_to_num_(0.0).clamp_(-_LEVELS, _LEVELS).to(torch.int8)
    return [scales, codes]


def from_wire(parts: list[Tensor], bits: int, out: Tensor) -> None:
    """Overwrite out, float32 (num, dim), by what came."""
    if bits == 8:
        torch.mul(parts[1], parts[0][:, None], out=out)
    elif parts[0] is not out:
        out.copy_(parts[0])
