"""Stochastic signs and zeros."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import fold_seed
from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import BlockCodec

__all__ = ["Ternary"]


@dataclass(frozen=True, kw_only=True)
class Ternary(BlockCodec):
    """s sign(x) b with s = max|x| per block and b = 1 with probability |x| / s: unbiased.

    Wen et al., TernGrad (arXiv:1705.07878), equations 1 and 2. It is QSGD with one level. Payload: 4 bytes per
    block, then 2 bits per element.
    """

    name: ClassVar[str] = "ternary"
    unbiased: ClassVar[bool] = True
    block: int = 512

    @property
    def code_bits(self) -> int:
        return 2

    def kernel_encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        kernels_for(x).levels_encode(x, residual, payload, self.block, 2, fold_seed(seed), stochastic=True)

    def kernel_decode(self, payload: Tensor, out: Tensor, *, add: bool) -> None:
        kernels_for(out).levels_decode(payload, out, self.block, 2, add=add)
