"""Deterministic 4-bit blocks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["Int4"]


@dataclass(frozen=True, kw_only=True)
class Int4:
    """Round x 7 / max|x| to the nearest integer of -7..7, per small block.

    The block-wise symmetric quantization of Dettmers et al. (arXiv:2110.02861), in 4 bits. |error| <= max|x| / 14.
    Payload: 4 bytes per block, then 4 bits per element.
    """

    name: ClassVar[str] = "int4"
    unbiased: ClassVar[bool] = False
    block: int = 64

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 32, 4096)
        if self.block % 32:
            raise ValueError(f"{self.name} packs codes in words, but its block is {self.block}; use a multiple of 32.")

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + -(-numel * 4 // 8)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, None, payload, seed)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, residual, payload, seed)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).levels_decode(payload, out, self.block, 4, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).levels_decode(payload, acc, self.block, 4, add=True)

    def _encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        kernels_for(x).levels_encode(x, residual, payload, self.block, 4, fold_seed(seed), stochastic=False)
