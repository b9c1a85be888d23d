"""Stochastic signs and zeros."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["Ternary"]


@dataclass(frozen=True, kw_only=True)
class Ternary:
    """s sign(x) b with s = max|x| per block and b = 1 with probability |x| / s: unbiased.

    Wen et al., TernGrad (arXiv:1705.07878), equations 1 and 2. It is QSGD with one level. Payload: 4 bytes per
    block, then 2 bits per element.
    """

    name: ClassVar[str] = "ternary"
    unbiased: ClassVar[bool] = True
    block: int = 512

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 32, 4096)
        if self.block % 32:
            raise ValueError(f"{self.name} packs codes in words, but its block is {self.block}; use a multiple of 32.")

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + -(-numel * 2 // 8)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, None, payload, seed)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, residual, payload, seed)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).levels_decode(payload, out, self.block, 2, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).levels_decode(payload, acc, self.block, 2, add=True)

    def _encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        kernels_for(x).levels_encode(x, residual, payload, self.block, 2, fold_seed(seed), stochastic=True)
