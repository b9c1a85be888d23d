"""Stochastic rounding to powers of two."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["Natural"]


@dataclass(frozen=True, kw_only=True)
class Natural:
    """Round |x| to one of the two powers of two around it, at random so that the mean is x: one byte per element.

    Horvath et al., Natural compression (arXiv:1905.10988), definition 2; the variance is at most x^2 / 8. A code is
    a sign bit and the places below the block's largest power; what lies more than 126 powers below becomes zero or
    the least power, still unbiased; powers end at 2^127. Payload: 4 bytes per block, then the codes.
    """

    name: ClassVar[str] = "natural"
    unbiased: ClassVar[bool] = True
    block: int = 2048

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 1, 4096)

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + numel

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel():
            kernels_for(x).natural_encode(x, None, payload, self.block, fold_seed(seed))

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        if x.numel():
            kernels_for(x).natural_encode(x, residual, payload, self.block, fold_seed(seed))

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).natural_decode(payload, out, self.block, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).natural_decode(payload, acc, self.block, add=True)
