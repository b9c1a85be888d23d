"""Deterministic rounding to 4-bit blocks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import fold_seed
from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import BlockCodec

__all__ = ["Int4"]


@dataclass(frozen=True, kw_only=True)
class Int4(BlockCodec):
    """Round x 7 / max|x| to the nearest integer of -7..7, per small block.

    The block-wise symmetric quantization of Dettmers et al. (arXiv:2110.02861), in 4 bits. |error| <= max|x| / 14.
    Payload: 4 bytes per block, then 4 bits per element.
    """

    name: ClassVar[str] = "int4"
    unbiased: ClassVar[bool] = False
    block: int = 64

    @property
    def code_bits(self) -> int:
        return 4

    def kernel_encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        kernels_for(x).levels_encode(x, residual, payload, self.block, 4, fold_seed(seed), stochastic=False)

    def kernel_decode(self, payload: Tensor, out: Tensor, *, add: bool) -> None:
        kernels_for(out).levels_decode(payload, out, self.block, 4, add=add)
