# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""sign: the mean of |x| for each block, then one bit for each element. The mean is the C kernel's to the bit."""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.lanes import lane_sums
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, bits_of, magnitude_of, signed

__all__ = ["SIGN", "sign_decode", "sign_encode", "sign_mean"]


@triton.jit
def _quantize(v, inside, i, seed, BITS: tl.constexpr):
    lengths = tl.maximum(tl.sum(inside.to(tl.int32), 1), 1).to(tl.float32)
    mean = tl.div_rn(lane_sums(tl.abs(v)), lengths)
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
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    SIGN.mean(x, owed, payloads, payload, block, feedback=feedback)
