# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""sign: the mean of |x| for each block, then one bit for each element.

The mean is the C kernel's to the bit, and so has its order of adding: element i into column i % 16, row by row, then
halves onto halves.
"""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, bits_of, magnitude_of, signed

__all__ = ["SIGN", "sign_decode", "sign_encode", "sign_mean"]

_COLUMNS = tl.constexpr(16)


@triton.jit
def _add_in_order(sums, parts):
    """Return sums, (ROWS, 16), plus all parts, (ROWS, NUM, 16), one after the other: no sum of Triton has an order."""
    NUM: tl.constexpr = parts.shape[1]
    if NUM == 1:
        sums += tl.reshape(parts, sums.shape)
    else:
        halves = tl.reshape(parts, (parts.shape[0], 2, NUM // 2, _COLUMNS))
        first, second = tl.split(tl.permute(halves, (0, 2, 3, 1)))
        sums = _add_in_order(_add_in_order(sums, first), second)
    return sums


@triton.jit
def _quantize(v, inside, i, seed, BITS: tl.constexpr):
    ROWS: tl.constexpr = v.shape[0]
    parts = tl.reshape(tl.abs(v), (ROWS, v.shape[1] // _COLUMNS, _COLUMNS))
    sums = _add_in_order(tl.zeros((ROWS, _COLUMNS), tl.float32), parts)
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 2)), 1)  # a sum of two has one order
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 4)), 1)
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 8)), 1)
    lengths = tl.maximum(tl.sum(inside.to(tl.int32), 1), 1).to(tl.float32)
    mean = tl.div_rn(tl.sum(sums, 1), lengths)
    if tl.max(magnitude_of(mean), 0) >= INFINITE_BITS:  # too large for a float, or not finite at all
        inverse = tl.div_rn(tl.zeros_like(lengths) + 1.0, lengths).to(tl.float64)
        for _ in range(2):  # Newton's steps: a division of float64 would need a stack
            inverse = inverse * (2.0 - lengths.to(tl.float64) * inverse)
        wide = (tl.sum(tl.abs(v).to(tl.float64), 1) * inverse).to(tl.float32)
        mean = tl.where(magnitude_of(mean) < INFINITE_BITS, mean, wide)
    negative = (bits_of(v) < 0).to(tl.int32)
    return negative, mean, mean, mean, _dequantize(negative, mean, mean[:, None], mean, BITS)


@triton.jit
def _dequantize(codes, low, step, offset, BITS: tl.constexpr):
    return signed(tl.broadcast_to(step, codes.shape), codes)


SIGN = Format(_quantize, _dequantize, bits=1)


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, *, gate: Tensor | None = None) -> None:
    SIGN.encode(x, residual, payload, block, gate=gate)


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    SIGN.decode(payload, acc, block, add=add)


def sign_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    *,
    feedback: bool,
    gate: Tensor | None = None,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    SIGN.mean(x, owed, payloads, payload, block, feedback=feedback, gate=gate)
