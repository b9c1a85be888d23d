"""The kernels in plain torch: the oracles of the C ones, and what runs on other devices.

Tensors: x, residual, acc float32 (numel,); payload uint8. Layouts are described in the C files.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = [
    "add_at",
    "all_finite",
    "clear_at",
    "levels_decode",
    "levels_encode",
    "minmax8_decode",
    "minmax8_encode",
    "random_bits",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "sign_decode",
    "sign_encode",
    "topk_encode",
]

_MASK = 0xFFFFFFFF
_TINY = 1.1754944e-38
_ROUNDER = 12582912.0
"""1.5 * 2^23: adding it rounds to the nearest integer, half to even."""
_LANES = 16


def random_bits(seed: int, index: Tensor) -> Tensor:
    """Return 32 random bits for each element of index, as int64; see random_bits in kernels.h."""
    h = (index * 0x9E3779B1 + seed) & _MASK
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _blocks(x: Tensor, block: int, fill: float) -> Tensor:
    """Return x as (num_blocks, block), the last one filled up."""
    return pad(x, (0, -x.numel() % block), value=fill).view(-1, block)


def _store(values: Tensor, acc: Tensor, *, add: bool) -> None:
    values = values.reshape(-1)[: acc.numel()]
    if add:
        acc.add_(values)
    else:
        acc.copy_(values)


def _with_residual(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else x + residual


def minmax8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = _with_residual(x, residual)
    least = _blocks(x, block, torch.inf).amin(1)  # (num_blocks,)
    most = _blocks(x, block, -torch.inf).amax(1)
    finite = _blocks(x, block, 0.0).isfinite().all(1)
    inside = (least <= 0) & (most >= 0)
    step = most / 255 - least / 255
    flat = step < _TINY
    huge = (most > 1e38) | (least < -1e38)
    step = torch.where(huge & inside, torch.maximum(most, -least) / 127, step)
    step = torch.where(huge, step * 0.999999, step)
    inverse = torch.where(flat, 0.0, 1 / step)
    high = (most * inverse + _ROUNDER) - _ROUNDER
    low = torch.where(flat | ~inside, 0.0, torch.where(huge, -128.0, high - 255))
    step = torch.where(flat, 0.0, step)
    offset = torch.where(inside, 0.0, least)
    zero = torch.zeros_like(step)
    low, step, inverse = (torch.where(finite, v, zero) for v in (low, step, inverse))
    offset = torch.where(finite, offset, torch.nan)
    v = (_blocks(x, block, 0.0) - offset[:, None]) * inverse[:, None]
    v = torch.minimum(torch.maximum(v, low[:, None]), low[:, None] + 255) + (_ROUNDER - low)[:, None]
    codes = (v - _ROUNDER).nan_to_num(0.0).to(torch.uint8)
    header = torch.stack([low, step, offset], 1).contiguous().view(torch.uint8).view(-1)
    payload[: header.numel()] = header
    payload[header.numel() :] = codes.view(-1)[: x.numel()]
    if residual is not None:
        minmax8_decode(payload, residual, block, add=False)
        residual.copy_(x - residual)


def minmax8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    low, step, offset = payload[: 12 * num_blocks].view(torch.float32).view(-1, 3).unbind(1)
    codes = _blocks(payload[12 * num_blocks :].float(), block, 0.0)
    _store((codes + low[:, None]) * step[:, None] + offset[:, None], acc, add=add)


def _mean_magnitude(x: Tensor, block: int) -> Tensor:
    """Return the mean of |x| per block, float32 (num_blocks,), added up in the order of the C kernel."""
    lengths = torch.full((-(-x.numel() // block),), float(block), device=x.device)
    lengths[-1] = x.numel() - block * (lengths.numel() - 1)
    magnitudes = _blocks(x, block, 0.0).abs()
    lanes = torch.zeros(lengths.numel(), _LANES, device=x.device)
    for row in magnitudes.view(-1, block // _LANES, _LANES).unbind(1):
        lanes += row
    while lanes.shape[1] > 1:
        left, right = lanes.chunk(2, dim=1)
        lanes = left + right
    mean = lanes[:, 0] / lengths
    return torch.where(mean.isfinite(), mean, (magnitudes.double().sum(1) / lengths).float())


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = _with_residual(x, residual)
    scale = _mean_magnitude(x, block)
    bits = _blocks(x.view(torch.int32) < 0, 8, 0.0).to(torch.uint8)  # (num_bytes, 8)
    weights = 1 << torch.arange(8, device=x.device, dtype=torch.uint8)
    payload[: 4 * scale.numel()] = scale.view(torch.uint8)
    payload[4 * scale.numel() :] = (bits * weights).sum(1, dtype=torch.uint8)
    if residual is not None:
        sign_decode(payload, residual, block, add=False)
        residual.copy_(x - residual)


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    scale = payload[: 4 * num_blocks].view(torch.float32)
    shifts = torch.arange(8, device=acc.device, dtype=torch.uint8)
    bits = (payload[4 * num_blocks :, None] >> shifts) & 1  # (num_bytes, 8)
    signs = _blocks(1 - 2 * bits.view(-1)[: acc.numel()].float(), block, 0.0)
    _store(signs * scale[:, None], acc, add=add)


def levels_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, bits: int, seed: int, *, stochastic: bool
) -> None:
    x = _with_residual(x, residual)
    s = (1 << (bits - 1)) - 1
    blocks = _blocks(x, block, 0.0)
    most = blocks.abs().amax(1)  # (num_blocks,)
    usable = most.isfinite() & (most >= 1e-35)
    inverse = torch.where(usable, s / most, 0.0)
    step = most / s
    step = torch.where(most > 1e38, (step.view(torch.int32) - 1).view(torch.float32), step)
    step = torch.where(usable, step, 0.0)
    step = torch.where(most.isfinite(), step, torch.nan)
    index = torch.arange(blocks.numel(), device=x.device).view_as(blocks)
    u = (random_bits(seed, index) >> 8).float() * 2.0**-24 if stochastic else 0.5
    codes = (blocks * inverse[:, None] + float(s) + u).nan_to_num(0.0).clamp(0, 2 * s).to(torch.uint8)
    payload[: 4 * step.numel()] = step.view(torch.uint8)
    packed = codes.view(-1)[: x.numel()]
    if bits != 8:
        per = 8 // bits
        weights = 1 << (bits * torch.arange(per, device=x.device, dtype=torch.uint8))
        packed = (_blocks(packed, per, 0.0) * weights).sum(1, dtype=torch.uint8)
    payload[4 * step.numel() :] = packed
    if residual is not None:
        levels_decode(payload, residual, block, bits, add=False)
        residual.copy_(x - residual)


def levels_decode(payload: Tensor, acc: Tensor, block: int, bits: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    step = payload[: 4 * num_blocks].view(torch.float32)
    codes = payload[4 * num_blocks :]
    if bits != 8:
        shifts = bits * torch.arange(8 // bits, device=acc.device, dtype=torch.uint8)
        codes = ((codes[:, None] >> shifts) & ((1 << bits) - 1)).view(-1)[: acc.numel()]
    s = (1 << (bits - 1)) - 1
    _store((_blocks(codes.float(), block, 0.0) - s) * step[:, None], acc, add=add)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    k = indices.numel()
    magnitude = x.view(torch.int32) & 0x7FFFFFFF  # the order of |x|, NaN above all
    if stride == 1:
        chosen = torch.sort(magnitude, descending=True, stable=True).indices[:k].sort().values
    else:
        sample = magnitude[::stride].sort(descending=True).values
        least = sample[min(max(k // stride, 1), sample.numel()) - 1]
        chosen = (magnitude >= least).nonzero().view(-1)[:k]
    indices.fill_(-1)
    values.zero_()
    indices[: chosen.numel()] = chosen.to(torch.int32)
    values[: chosen.numel()] = x[chosen]


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    real = indices >= 0
    acc.index_add_(0, indices[real].long(), values[real])


def clear_at(x: Tensor, indices: Tensor) -> None:
    x[indices[indices >= 0].long()] = 0


def _places(numel: int, num_values: int, seed: int, device: torch.device) -> Tensor:
    j = torch.arange(num_values, device=device)
    first, following = j * numel // num_values, (j + 1) * numel // num_values
    return first + (random_bits(seed, j) * (following - first) >> 32)


def randomk_gather(x: Tensor, values: Tensor, seed: int) -> None:
    values.copy_(x[_places(x.numel(), values.numel(), seed, x.device)])


def randomk_add(acc: Tensor, values: Tensor, seed: int) -> None:
    acc[_places(acc.numel(), values.numel(), seed, acc.device)] += values


def randomk_clear(x: Tensor, num_values: int, seed: int) -> None:
    x[_places(x.numel(), num_values, seed, x.device)] = 0


def all_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())
