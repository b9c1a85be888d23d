# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The launch of a kernel: on the device of its tensors, without contraction, with tiles of some 2,048 elements."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["Tiles", "device_of", "launch", "signed_seed"]

_TILE = 2048
"""Elements of a program's tile: 16 for each thread of four warps."""


@dataclass(frozen=True)
class Tiles:
    """The division of a vector among programs, each with `rows` blocks of `block` elements, padded to `width`."""

    block: int
    width: int
    rows: int

    @classmethod
    def of(cls, block: int, tile: int = _TILE) -> "Tiles":
        width = triton.next_power_of_2(block)
        return cls(block, width, max(1, tile // width))

    @property
    def num_warps(self) -> int:
        return max(4, self.width * self.rows // 512)

    def grid(self, numel: int) -> tuple[int]:
        return (triton.cdiv(numel, self.block * self.rows),)


def device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make the device of x the current one: Triton launches there, whatever tensors it is given."""
    return nullcontext() if x.device.type == "cpu" else torch.accelerator.device_index(x.device.index)


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: Mapping[str, Any]) -> None:
    """Start a kernel on the device of its first argument; a product and a sum are rounded one after the other."""
    if min(grid) > 0:
        with device_of(arguments[0]):
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def signed_seed(seed: int) -> int:
    """Return the int32 with the bits of a seed of 32 bits, so that a kernel has one type for all of them."""
    return (seed & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
