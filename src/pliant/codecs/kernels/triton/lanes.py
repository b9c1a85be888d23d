# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Sums along blocks in the C kernels' order: element i into column i % 16, row by row, then halves onto halves."""

import triton
import triton.language as tl

__all__ = ["lane_sums"]

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
def lane_sums(v):
    """Return the sum of each row of v, (ROWS, WIDTH): (ROWS,)."""
    ROWS: tl.constexpr = v.shape[0]
    parts = tl.reshape(v, (ROWS, v.shape[1] // _COLUMNS, _COLUMNS))
    sums = _add_in_order(tl.zeros((ROWS, _COLUMNS), tl.float32), parts)
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 2)), 1)  # a sum of two has one order
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 4)), 1)
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, _COLUMNS // 8)), 1)
    return tl.sum(sums, 1)
