# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Integer levels of a block's maximum, to nearest (int4) or at random (qsgd, ternary); the arithmetic of levels.c."""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, as_float, bits_of, magnitude_of, random_bits

__all__ = ["LEVELS", "levels_decode", "levels_encode", "levels_mean"]


@triton.jit
def _levels(v, u, BITS: tl.constexpr):
    """Round |v| / step + u down, u in (0, 1), and give the level the sign of v."""
    s: tl.constexpr = (1 << (BITS - 1)) - 1
    bits = tl.max(magnitude_of(v), 1)
    most, finite = as_float(bits), bits < INFINITE_BITS
    usable = finite & (most >= 1e-35)  # below, s / max would overflow
    levels = tl.zeros_like(most) + s
    inverse = tl.where(usable, tl.div_rn(levels, most), 0.0)
    step = tl.div_rn(most, levels)
    step = tl.where(most > 1e38, as_float(bits_of(step) - 1), step)  # s steps must not round to infinity
    step = tl.where(finite, tl.where(usable, step, 0.0), float("nan"))
    level = tl.abs(v) * inverse[:, None] + u
    level = tl.where(level < s, level, tl.zeros_like(level) + s).to(tl.int32)
    level = tl.where(bits_of(v) < 0, -level, level)
    return level + s, step, level.to(tl.float32) * step[:, None]


@triton.jit
def _quantize_nearest(v, inside, i, seed, BITS: tl.constexpr):
    codes, step, decoded = _levels(v, 0.5, BITS)
    return codes, step, step, step, decoded


@triton.jit
def _quantize_at_random(v, inside, i, seed, BITS: tl.constexpr):
    # An odd multiple of 2^-17: never 0 or 1, and exact when added to a level.
    u = (random_bits(seed, i) >> 16 << 1 | 1).to(tl.int32).to(tl.float32) * 7.62939453125e-06
    codes, step, decoded = _levels(v, u, BITS)
    return codes, step, step, step, decoded


@triton.jit
def _dequantize(codes, low, step, offset, BITS: tl.constexpr):
    s: tl.constexpr = (1 << (BITS - 1)) - 1
    return (codes - s).to(tl.float32) * step


LEVELS = {
    (bits, stochastic): Format(_quantize_at_random if stochastic else _quantize_nearest, _dequantize, bits=bits)
    for bits in (2, 4, 8)
    for stochastic in (False, True)
}
"""Formats by bits of a code and whether it is rounded at random."""


def levels_encode(
    x: Tensor,
    residual: Tensor | None,
    payload: Tensor,
    block: int,
    bits: int,
    seed: int,
    *,
    stochastic: bool,
    gate: Tensor | None = None,
) -> None:
    LEVELS[bits, stochastic].encode(x, residual, payload, block, seed, gate)


def levels_decode(payload: Tensor, acc: Tensor, block: int, bits: int, *, add: bool) -> None:
    LEVELS[bits, False].decode(payload, acc, block, add=add)


def levels_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    bits: int,
    seed: int,
    *,
    stochastic: bool,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    LEVELS[bits, stochastic].mean(x, owed, payloads, payload, block, seed, feedback=feedback)
