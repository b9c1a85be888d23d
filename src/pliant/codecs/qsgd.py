"""Stochastic rounding to a few levels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import fold_seed
from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import BlockCodec

__all__ = ["Qsgd"]


@dataclass(frozen=True, kw_only=True)
class Qsgd(BlockCodec):
    """Round x s / ||x||_max, per block, up or down at random to an integer of -s..s, s = 2^(bits-1) - 1: unbiased.

    Alistarh et al., QSGD (arXiv:1610.02132), section 3, with the maximum norm instead of the 2-norm: with few levels
    its variance is far smaller, at most d s^-2 / 4 of the squared maximum. Payload: 4 bytes per block, then codes.
    """

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True
    block: int = 512
    bits: int = 8

    @property
    def code_bits(self) -> int:
        return self.bits

    def kernel_encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        kernels_for(x).levels_encode(x, residual, payload, self.block, self.bits, fold_seed(seed), stochastic=True)

    def kernel_decode(self, payload: Tensor, out: Tensor, *, add: bool) -> None:
        kernels_for(out).levels_decode(payload, out, self.block, self.bits, add=add)
