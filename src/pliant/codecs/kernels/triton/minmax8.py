# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""minmax8: low, step and offset for each block, then one byte for each element; the arithmetic of minmax8.c."""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, bits_of, magnitude_of

__all__ = ["MINMAX8", "minmax8_decode", "minmax8_encode", "minmax8_mean"]

_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to the nearest integer, half to even
_TINY = tl.constexpr(1.1754944e-38)


@triton.jit
def _quantize(v, inside, i, seed, BITS: tl.constexpr):
    least = tl.min(tl.where(inside, v, float("inf")), 1)
    most = tl.max(tl.where(inside, v, float("-inf")), 1)
    finite = tl.max(magnitude_of(v), 1) < INFINITE_BITS
    zero_inside = (least <= 0) & (most >= 0)  # then the grid is the multiples of the step
    full = tl.zeros_like(most) + 255.0
    step = tl.where(zero_inside, tl.div_rn(most, full) - tl.div_rn(least, full), tl.div_rn(most - least, full))
    flat = step < _TINY
    huge = (most > 1e38) | (least < -1e38)  # then no end of the grid may round to infinity
    step = tl.where(huge & zero_inside, tl.div_rn(tl.maximum(most, -least), tl.zeros_like(most) + 127.0), step)
    step = tl.where(huge, step * 0.999999, step)
    inverse = tl.where(finite & (flat == 0), tl.div_rn(tl.zeros_like(step) + 1.0, step), 0.0)
    high = (most * inverse + 0.5).to(tl.int32).to(tl.float32)
    low = tl.where(huge, -128.0, high - 255.0)
    low = tl.where(finite & (flat == 0) & zero_inside, low, 0.0)
    step = tl.where(finite & (flat == 0), step, 0.0)
    offset = tl.where(finite, tl.where(zero_inside, 0.0, least), float("nan"))
    q = tl.maximum((v - offset[:, None]) * inverse[:, None], low[:, None]) + (-low + _ROUNDER)[:, None]
    codes = tl.where(finite[:, None], bits_of(q) & 0xFF, 0)
    return codes, low, step, offset, ((q - _ROUNDER) + low[:, None]) * step[:, None] + offset[:, None]


@triton.jit
def _dequantize(codes, low, step, offset, BITS: tl.constexpr):
    return (codes.to(tl.float32) + low) * step + offset


MINMAX8 = Format(_quantize, _dequantize, bits=8, header=3)


def minmax8_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, *, gate: Tensor | None = None
) -> None:
    MINMAX8.encode(x, residual, payload, block, gate=gate)


def minmax8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    MINMAX8.decode(payload, acc, block, add=add)


def minmax8_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    *,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    MINMAX8.mean(x, owed, payloads, payload, block, feedback=feedback)
