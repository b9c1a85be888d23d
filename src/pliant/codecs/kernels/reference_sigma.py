"""Reference of sigma.c in plain torch: two bits by the size of an element beside its block."""

import torch
from torch import Tensor

from pliant.codecs.kernels.reference_blocks import (
    in_blocks,
    keep,
    lane_sums,
    lengths_of,
    pack,
    store,
    unpack,
    with_residual,
)

__all__ = ["sigma_decode", "sigma_encode"]

_LIMIT = 0.9635362
_HUGE = 2.0**115


def sigma_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = with_residual(x, residual)
    magnitudes, lengths = in_blocks(x, block, 0.0).abs(), lengths_of(x, block)
    most = magnitudes.amax(1)  # (num_blocks,)
    unit = torch.where(most >= _HUGE, 2.0**-12, 1.0).to(most.dtype)
    magnitudes, largest = magnitudes * unit[:, None], most * unit
    squares = magnitudes * magnitudes
    limit = lane_sums(squares) / lengths * _LIMIT
    outside = squares > limit[:, None]
    counts = outside.sum(1).float()
    means = []
    for sums, count in (
        (lane_sums(magnitudes.masked_fill(outside, 0.0)), lengths - counts),
        (lane_sums(magnitudes.masked_fill(~outside, 0.0)), counts),
    ):
        mean = torch.where(count > 0, sums / count, 0.0)
        means.append(torch.where(mean < largest, mean, largest) * (1 / unit))
    levels = torch.where(most.isfinite()[:, None], torch.stack(means, 1), torch.nan)  # (num_blocks, 2)
    codes = outside.to(torch.uint8) << 1 | in_blocks(x, block, 0.0).signbit().to(torch.uint8)
    codes = torch.where(most.isfinite()[:, None], codes, 0).view(-1)[: x.numel()]
    payload[: 8 * len(levels)] = levels.view(-1).view(torch.uint8)
    payload[8 * len(levels) :] = pack(codes, 2)
    if residual is not None:
        decoded = torch.empty_like(x)
        sigma_decode(payload, decoded, block, add=False)
        keep(residual, x, decoded)


def sigma_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    inner, outer = payload[: 8 * num_blocks].view(torch.float32).view(-1, 2, 1).unbind(1)
    codes = in_blocks(unpack(payload[8 * num_blocks :], 2)[: acc.numel()], block, 0)
    values = torch.where(codes > 1, outer, inner)
    store(torch.where(codes % 2 == 1, -values, values), acc, add=add)
