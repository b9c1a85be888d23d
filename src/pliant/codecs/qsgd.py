"""Stochastic rounding to a few levels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["Qsgd"]


@dataclass(frozen=True, kw_only=True)
class Qsgd:
    """Round x s / ||x||_max, per block, up or down at random to an integer of -s..s, s = 2^(bits-1) - 1: unbiased.

    Alistarh et al., QSGD (arXiv:1610.02132), section 3, with the maximum norm instead of the 2-norm: with few levels
    its variance is far smaller, at most d s^-2 / 4 of the squared maximum. Payload: 4 bytes per block, then codes.
    """

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True
    bits: int = 8
    block: int = 512

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise ValueError(f"qsgd has {self.bits} bits, but codes of 2, 4 or 8 bits fill bytes; use one of these.")
        require_range(self.name, "block", self.block, 32, 4096)
        if self.block % 32:
            raise ValueError(f"{self.name} packs codes in words, but its block is {self.block}; use a multiple of 32.")

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + -(-numel * self.bits // 8)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, None, payload, seed)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        self._encode(x, residual, payload, seed)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).levels_decode(payload, out, self.block, self.bits, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).levels_decode(payload, acc, self.block, self.bits, add=True)

    def _encode(self, x: Tensor, residual: Tensor | None, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        kernels_for(x).levels_encode(x, residual, payload, self.block, self.bits, fold_seed(seed), stochastic=True)
