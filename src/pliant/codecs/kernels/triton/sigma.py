# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""sigma2: two means of |x| for each block, then two bits for each element; the arithmetic of sigma.c."""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import Format
from pliant.codecs.kernels.triton.lanes import lane_sums
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, as_float, bits_of, magnitude_of, signed

__all__ = ["SIGMA", "sigma_decode", "sigma_encode", "sigma_mean"]

_LIMIT = tl.constexpr(0.9635362)  # of the mean square
_HUGE_BITS = tl.constexpr(0x79000000)  # 2^115


@triton.jit
def _mean_of(sums, count, most, unit):
    mean = tl.where(count > 0, tl.div_rn(sums, tl.maximum(count, 1).to(tl.float32)), 0.0)
    return tl.where(mean < most, mean, most) * tl.where(unit < 1.0, 4096.0, 1.0)


@triton.jit
def _quantize(v, inside, i, seed, BITS: tl.constexpr):
    bits = tl.max(magnitude_of(v), 1)
    unit, finite = tl.where(bits >= _HUGE_BITS, 0.000244140625, 1.0), bits < INFINITE_BITS
    v, most = v * unit[:, None], as_float(bits) * unit
    lengths = tl.sum(inside.to(tl.int32), 1)
    limit = tl.div_rn(lane_sums(v * v), tl.maximum(lengths, 1).to(tl.float32)) * _LIMIT
    outside = (v * v > limit[:, None]).to(tl.int32)
    codes = tl.where(finite[:, None], (outside << 1) | (bits_of(v) < 0).to(tl.int32), 0)
    count = tl.sum(outside, 1)
    inner = _mean_of(lane_sums(tl.where(outside > 0, 0.0, tl.abs(v))), lengths - count, most, unit)
    outer = _mean_of(lane_sums(tl.where(outside > 0, tl.abs(v), 0.0)), count, most, unit)
    inner, outer = tl.where(finite, inner, float("nan")), tl.where(finite, outer, float("nan"))
    return codes, inner, outer, outer, _dequantize(codes, inner[:, None], outer[:, None], outer, BITS)


@triton.jit
def _dequantize(codes, low, step, offset, BITS: tl.constexpr):
    return signed(tl.where(codes > 1, step, low), codes & 1)


SIGMA = Format(_quantize, _dequantize, bits=2, header=2)


def sigma_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, *, gate: Tensor | None = None
) -> None:
    SIGMA.encode(x, residual, payload, block, gate=gate)


def sigma_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    SIGMA.decode(payload, acc, block, add=add)


def sigma_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    *,
    feedback: bool,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    SIGMA.mean(x, owed, payloads, payload, block, feedback=feedback)
