# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Short floating-point formats: bf16 and fp16, e4m3 with a scale for each block, and powers of two (natural).

The arithmetic is that of floats.c, on bits: conversions of a device and of Triton's interpreter do not agree on all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.tiles import (
    INFINITE_BITS,
    as_float,
    bits_of,
    magnitude_of,
    random_bits,
    signed,
)

__all__ = [
    "CASTS",
    "FP8",
    "NATURAL",
    "cast_decode",
    "cast_encode",
    "cast_mean",
    "fp8_decode",
    "fp8_encode",
    "fp8_mean",
    "natural_decode",
    "natural_encode",
    "natural_mean",
]


@triton.jit
def _none(v):
    """Return the header of a format that has none."""
    return tl.max(v, 1)


@triton.jit
def _quantize_bf16(v, inside, i, seed, BITS: tl.constexpr):
    b = magnitude_of(v)
    codes = tl.where(b > INFINITE_BITS, 0x7FC0, (b + 0x7FFF + (b >> 16 & 1)) >> 16)  # to nearest, half to even
    codes = codes | (bits_of(v) >> 16 & 0x8000)
    return codes, _none(v), _none(v), _none(v), as_float(codes << 16)


@triton.jit
def _dequantize_bf16(codes, low, step, offset, BITS: tl.constexpr):
    return as_float(codes << 16)


@triton.jit
def _quantize_fp16(v, inside, i, seed, BITS: tl.constexpr):
    b = magnitude_of(v)
    normal = ((b + 0xFFF + (b >> 13 & 1)) >> 13) - (112 << 10)
    denormal = bits_of(as_float(b) + 0.5) & 0x7FF  # multiples of 2^-24
    codes = tl.where(b < 0x38800000, denormal, tl.minimum(normal, 0x7C00))
    codes = tl.where(b > INFINITE_BITS, 0x7E00, codes) | (bits_of(v) >> 16 & 0x8000)
    return codes, _none(v), _none(v), _none(v), _dequantize_fp16(codes, 0, 0, 0, BITS)


@triton.jit
def _dequantize_fp16(codes, low, step, offset, BITS: tl.constexpr):
    a = codes & 0x7FFF
    normal = as_float((a << 13) + (112 << 23))
    value = tl.where(a < 0x400, a.to(tl.float32) * 5.9604644775390625e-08, normal)
    value = tl.where(a >= 0x7C00, as_float(a << 13 | 0x7F800000), value)
    return signed(value, codes >> 15 & 1)


@triton.jit
def _quantize_fp8(v, inside, i, seed, BITS: tl.constexpr):
    bits = tl.max(magnitude_of(v), 1)
    most, finite = as_float(bits), bits < INFINITE_BITS
    usable = finite & (most >= 1e-34)  # below, 448 / max would overflow
    largest = tl.zeros_like(most) + 448.0
    step = tl.where(finite, tl.where(usable, tl.div_rn(most, largest), 0.0), float("nan"))
    inverse = tl.where(usable, tl.div_rn(largest, most), 0.0)
    a = tl.abs(v) * inverse[:, None]
    a = tl.where(a < 448.0, a, 448.0)
    b = bits_of(a)
    normal = ((b + 0x7FFFF + (b >> 20 & 1)) >> 20) - (120 << 3)  # to nearest, half to even
    denormal = bits_of(a + 16384.0) & 0xF  # multiples of 2^-9
    codes = tl.where(a < 0.015625, denormal, normal) | (bits_of(v) >> 24 & 0x80)
    codes = tl.where(usable[:, None], codes, 0)
    return codes, step, step, step, _dequantize_fp8(codes, step[:, None], step[:, None], step[:, None], BITS)


@triton.jit
def _dequantize_fp8(codes, low, step, offset, BITS: tl.constexpr):
    a = codes & 127
    value = tl.where(a < 8, a.to(tl.float32) * 0.001953125, as_float((a << 20) + (120 << 23)))
    return signed(value * step, codes >> 7)


@triton.jit
def _quantize_natural(v, inside, i, seed, BITS: tl.constexpr):
    a, random = magnitude_of(v), random_bits(seed, i)
    most = tl.max(a, 1)
    finite = most < INFINITE_BITS
    top = tl.minimum((most >> 23) + 1, 254)
    least = tl.maximum(top - 126, 1)
    exponent = tl.minimum((a + (random & 0x7FFFFF).to(tl.int32)) >> 23, top[:, None])
    in_least = as_float(a) * as_float((254 - least) << 23)[:, None]
    rare = in_least > (random >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
    places = tl.where(rare, (top + 1 - least)[:, None], 0)
    codes = tl.where(a < (least << 23)[:, None], places, (top + 1)[:, None] - exponent)
    codes = tl.where(finite[:, None], codes | (bits_of(v) >> 24 & 0x80), 0)
    header = as_float(tl.where(finite, top << 23, 0x7FC00000))
    return codes, header, header, header, _dequantize_natural(codes, header, header[:, None], header, BITS)


@triton.jit
def _dequantize_natural(codes, low, step, offset, BITS: tl.constexpr):
    header, places = bits_of(tl.broadcast_to(step, codes.shape)), codes & 127
    power = tl.where(places == 0, 0, ((header >> 23) + 1 - places) << 23)
    return as_float(tl.where(header >= INFINITE_BITS, header, power | codes >> 7 << 31))


CASTS = {
    torch.bfloat16: Format(_quantize_bf16, _dequantize_bf16, bits=16, header=0),
    torch.float16: Format(_quantize_fp16, _dequantize_fp16, bits=16, header=0),
}
_CAST_BLOCK = 1024
FP8 = Format(_quantize_fp8, _dequantize_fp8, bits=8)
NATURAL = Format(_quantize_natural, _dequantize_natural, bits=8)


def natural_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, seed: int, *, gate: Tensor | None = None
) -> None:
    NATURAL.encode(x, residual, payload, block, seed, gate=gate)


def natural_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    NATURAL.decode(payload, acc, block, add=add)


def natural_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    seed: int,
    *,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    NATURAL.mean(x, owed, payloads, payload, block, seed, feedback=feedback)


def fp8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, *, gate: Tensor | None = None) -> None:
    FP8.encode(x, residual, payload, block, gate=gate)


def fp8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    FP8.decode(payload, acc, block, add=add)


def fp8_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    *,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    FP8.mean(x, owed, payloads, payload, block, feedback=feedback)


def cast_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, dtype: torch.dtype, *, gate: Tensor | None = None
) -> None:
    CASTS[dtype].encode(x, residual, payload, _CAST_BLOCK, gate=gate)


def cast_decode(payload: Tensor, acc: Tensor, dtype: torch.dtype, *, add: bool) -> None:
    CASTS[dtype].decode(payload, acc, _CAST_BLOCK, add=add)


def cast_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    dtype: torch.dtype,
    *,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    CASTS[dtype].mean(x, owed, payloads, payload, _CAST_BLOCK, feedback=feedback)
