"""The 16-bit formats in plain torch, on every device: a conversion is what torch does fast."""

import torch
from torch import Tensor

__all__ = ["cast_decode", "cast_encode"]

_PIECE = 1 << 15
"""Elements converted at a time: torch's addition of mixed types is far slower than a conversion that stays in cache."""


def cast_encode(x: Tensor, residual: Tensor | None, payload: Tensor, dtype: torch.dtype) -> None:
    wire = payload.view(dtype)
    if residual is None:
        wire.copy_(x)
        return
    wire.copy_(x.add(residual))
    decoded = wire.float()
    residual.copy_(torch.where(decoded.isfinite(), x + residual - decoded, residual))


def cast_decode(payload: Tensor, acc: Tensor, dtype: torch.dtype, *, add: bool) -> None:
    if not add:
        acc.copy_(payload.view(dtype))
        return
    for part, wire in zip(acc.split(_PIECE), payload.view(dtype).split(_PIECE), strict=True):
        part.add_(wire.float())
