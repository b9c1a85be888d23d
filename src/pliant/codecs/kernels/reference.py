"""The kernels in plain torch: the oracles of the C ones, and what runs on other devices.

Tensors: x, residual, acc float32 (numel,); payload uint8. Layouts are described in the C files.
"""

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
from pliant.codecs.kernels.reference_cast import cast_decode, cast_encode
from pliant.codecs.kernels.reference_lowrank import low_rank_left, low_rank_right, low_rank_split, orthogonalize
from pliant.codecs.kernels.reference_rows import (
    add_rows,
    add_squares,
    by_owner,
    distinct_keys,
    subtract_ratios,
    subtract_rows,
)
from pliant.codecs.kernels.reference_scan import all_finite, hash_bytes, scale
from pliant.codecs.kernels.reference_select import (
    add_at,
    block_rms,
    blocks_add,
    blocks_clear,
    blocks_gather,
    chunks_encode,
    clear_at,
    random_bits,
    randomk_add,
    randomk_clear,
    randomk_gather,
    topk_encode,
)
from pliant.codecs.kernels.reference_sigma import sigma_decode, sigma_encode

__all__ = [
    "add_at",
    "add_rows",
    "add_squares",
    "all_finite",
    "block_rms",
    "blocks_add",
    "blocks_clear",
    "blocks_gather",
    "by_owner",
    "cast_decode",
    "cast_encode",
    "chunks_encode",
    "clear_at",
    "distinct_keys",
    "fp8_decode",
    "fp8_encode",
    "hash_bytes",
    "levels_decode",
    "levels_encode",
    "low_rank_left",
    "low_rank_right",
    "low_rank_split",
    "minmax8_decode",
    "minmax8_encode",
    "natural_decode",
    "natural_encode",
    "orthogonalize",
    "random_bits",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "scale",
    "sigma_decode",
    "sigma_encode",
    "sign_decode",
    "sign_encode",
    "subtract_ratios",
    "subtract_rows",
    "topk_encode",
]

_MASK = 0xFFFFFFFF
_INFINITE_BITS = 0x7F800000
_TINY = 1.1754944e-38
_ROUNDER = 12582912.0
"""1.5 * 2^23: adding it rounds to the nearest integer, half to even."""


def minmax8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = with_residual(x, residual)
    least = in_blocks(x, block, torch.inf).amin(1)  # (num_blocks,)
    most = in_blocks(x, block, -torch.inf).amax(1)
    finite = in_blocks(x, block, 0.0).isfinite().all(1)
    inside = (least <= 0) & (most >= 0)
    step = torch.where(inside, most / 255 - least / 255, (most - least) / 255)
    flat = step < _TINY
    huge = (most > 1e38) | (least < -1e38)
    step = torch.where(huge & inside, torch.maximum(most, -least) / 127, step)
    step = torch.where(huge, step * 0.999999, step)
    inverse = torch.where(flat, 0.0, 1 / step)
    high = (most * inverse + 0.5).trunc()
    low = torch.where(flat | ~inside, 0.0, torch.where(huge, -128.0, high - 255))
    step = torch.where(flat, 0.0, step)
    offset = torch.where(inside, 0.0, least)
    zero = torch.zeros_like(step)
    low, step, inverse = (torch.where(finite, v, zero) for v in (low, step, inverse))
    offset = torch.where(finite, offset, torch.nan)
    v = (in_blocks(x, block, 0.0) - offset[:, None]) * inverse[:, None]
    v = torch.maximum(v, low[:, None]) + (_ROUNDER - low)[:, None]
    codes = (v - _ROUNDER).nan_to_num(0.0).to(torch.uint8)
    header = torch.stack([low, step, offset], 1).contiguous().view(torch.uint8).view(-1)
    payload[: header.numel()] = header
    payload[header.numel() :] = codes.view(-1)[: x.numel()]
    if residual is not None:
        decoded = torch.empty_like(x)
        minmax8_decode(payload, decoded, block, add=False)
        keep(residual, x, decoded)


def minmax8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    low, step, offset = payload[: 12 * num_blocks].view(torch.float32).view(-1, 3).unbind(1)
    codes = in_blocks(payload[12 * num_blocks :].float(), block, 0.0)
    store((codes + low[:, None]) * step[:, None] + offset[:, None], acc, add=add)


def _mean_magnitude(x: Tensor, block: int) -> Tensor:
    """Return the mean of |x| per block, float32 (num_blocks,), added up in the order of the C kernel."""
    lengths, magnitudes = lengths_of(x, block), in_blocks(x, block, 0.0).abs()
    mean = lane_sums(magnitudes) / lengths
    return torch.where(mean.isfinite(), mean, (magnitudes.double().sum(1) / lengths).float())


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = with_residual(x, residual)
    scale = _mean_magnitude(x, block)
    payload[: 4 * scale.numel()] = scale.view(torch.uint8)
    payload[4 * scale.numel() :] = pack((x.view(torch.int32) < 0).to(torch.uint8), 1)
    if residual is not None:
        decoded = torch.empty_like(x)
        sign_decode(payload, decoded, block, add=False)
        keep(residual, x, decoded)


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    scale = payload[: 4 * num_blocks].view(torch.float32)
    bits = unpack(payload[4 * num_blocks :], 1)[: acc.numel()]
    signs = in_blocks(1 - 2 * bits.float(), block, 0.0)
    store(signs * scale[:, None], acc, add=add)


def levels_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, bits: int, seed: int, *, stochastic: bool
) -> None:
    x = with_residual(x, residual)
    s = (1 << (bits - 1)) - 1
    blocks = in_blocks(x, block, 0.0)
    most = blocks.abs().amax(1)  # (num_blocks,)
    usable = most.isfinite() & (most >= 1e-35)
    inverse = torch.where(usable, s / most, 0.0)
    step = most / s
    step = torch.where(most > 1e38, (step.view(torch.int32) - 1).view(torch.float32), step)
    step = torch.where(usable, step, 0.0)
    step = torch.where(most.isfinite(), step, torch.nan)
    index = torch.arange(blocks.numel(), device=x.device).view_as(blocks)
    u = (random_bits(seed, index) >> 16 << 1 | 1).float() * 2.0**-17 if stochastic else 0.5
    v = blocks.abs() * inverse[:, None] + u
    level = torch.where(v < s, v, float(s)).to(torch.int32)
    codes = (s + torch.where(blocks.signbit(), -level, level)).to(torch.uint8)
    payload[: 4 * step.numel()] = step.view(torch.uint8)
    packed = codes.view(-1)[: x.numel()]
    payload[4 * step.numel() :] = packed if bits == 8 else pack(packed, bits)
    if residual is not None:
        decoded = torch.empty_like(x)
        levels_decode(payload, decoded, block, bits, add=False)
        keep(residual, x, decoded)


def levels_decode(payload: Tensor, acc: Tensor, block: int, bits: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    step = payload[: 4 * num_blocks].view(torch.float32)
    codes = payload[4 * num_blocks :]
    if bits != 8:
        codes = unpack(codes, bits)[: acc.numel()]
    s = (1 << (bits - 1)) - 1
    store((in_blocks(codes.float(), block, 0.0) - s) * step[:, None], acc, add=add)


def natural_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, seed: int) -> None:
    x = with_residual(x, residual)
    magnitude = in_blocks(x.view(torch.int32).long() & 0x7FFFFFFF, block, 0)  # (num_blocks, block)
    most = magnitude.amax(1, keepdim=True)
    top = ((most >> 23) + 1).clamp(max=254)
    least = (top - 126).clamp(min=1)
    random = random_bits(seed, torch.arange(magnitude.numel(), device=x.device).view_as(magnitude))
    exponent = torch.minimum((magnitude + (random & 0x7FFFFF)) >> 23, top)
    in_least = magnitude.int().view(torch.float32) * ((254 - least) << 23).int().view(torch.float32)
    rare = torch.where(in_least > (random >> 8).float() * 2.0**-24, top + 1 - least, 0)
    codes = torch.where(magnitude < least << 23, rare, top + 1 - exponent)
    codes = torch.where(most >= _INFINITE_BITS, 0, codes).view(-1)[: x.numel()]
    signs = torch.where((most >= _INFINITE_BITS).expand_as(magnitude).reshape(-1)[: x.numel()], 0, x.signbit().long())
    header = torch.where(most >= _INFINITE_BITS, 0x7FC00000, top << 23).int().view(-1).view(torch.uint8)
    payload[: header.numel()] = header
    payload[header.numel() :] = (codes | signs << 7).to(torch.uint8)
    if residual is not None:
        decoded = torch.empty_like(x)
        natural_decode(payload, decoded, block, add=False)
        keep(residual, x, decoded)


def natural_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    header = payload[: 4 * num_blocks].view(torch.int32).long()[:, None]
    codes = in_blocks(payload[4 * num_blocks :].long(), block, 0)
    places = codes & 127
    power = torch.where(places == 0, 0, ((header >> 23) + 1 - places) << 23)
    values = torch.where(header >= _INFINITE_BITS, header, power).int().view(torch.float32)
    store(torch.where(codes > 127, -values, values), acc, add=add)


def fp8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    x = with_residual(x, residual)
    blocks = in_blocks(x, block, 0.0)
    most = blocks.abs().amax(1)  # (num_blocks,)
    usable = most.isfinite() & (most >= 1e-34)
    step = torch.where(most.isfinite(), torch.where(usable, most / 448, 0.0), torch.nan)
    scaled = (blocks * (448 / most)[:, None]).clamp(-448, 448)
    codes = torch.where(usable[:, None], scaled, 0.0).view(-1)[: x.numel()].to(torch.float8_e4m3fn).view(torch.uint8)
    payload[: 4 * step.numel()] = step.view(torch.uint8)
    payload[4 * step.numel() :] = codes
    if residual is not None:
        decoded = torch.empty_like(x)
        fp8_decode(payload, decoded, block, add=False)
        keep(residual, x, decoded)


def fp8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    num_blocks = -(-acc.numel() // block)
    step = payload[: 4 * num_blocks].view(torch.float32)
    values = in_blocks(payload[4 * num_blocks :].view(torch.float8_e4m3fn).float(), block, 0.0)
    store(values * step[:, None], acc, add=add)
