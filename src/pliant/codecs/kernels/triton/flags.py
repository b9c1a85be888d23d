# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""One look at all of a tensor, whose outcome stays on the device: a flag of many tensors is read by the host once.

A flag is int32 (1,), zero at first; what is found sets it to one, and nothing but its owner clears it. Given as the
`gate` of an encoder, it keeps the residual as it is.
"""

import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.launch import launch
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, magnitude_of

__all__ = ["mark_kernel", "mark_nonfinite", "scale_and_mark"]

_TILE = 4096


@triton.jit
def mark_kernel(x, flag, n, factor, SCALE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    at = tl.arange(0, TILE)
    inside = at < n - first
    v = tl.load(x + first + at, inside, 0.0)
    if SCALE:
        v = v * factor
        tl.store(x + first + at, v, inside)
    tl.store(flag, 1, tl.max(magnitude_of(v), 0) >= INFINITE_BITS)  # whoever writes, writes the same


def mark_nonfinite(x: Tensor, flag: Tensor) -> None:
    """Set flag, int32 (1,), if an element of x, float32 of any shape and contiguous, is NaN or Inf."""
    _mark(x, flag, 1.0, scale=False)


def scale_and_mark(x: Tensor, factor: float, flag: Tensor) -> None:
    """Multiply x, float32 of any shape and contiguous, in place, and set flag, int32 (1,), if it is not finite then."""
    _mark(x, flag, factor, scale=True)


def _mark(x: Tensor, flag: Tensor, factor: float, *, scale: bool) -> None:
    grid = (triton.cdiv(x.numel(), _TILE),)
    launch(mark_kernel, grid, (x, flag, x.numel(), factor), {"SCALE": scale, "TILE": _TILE})
