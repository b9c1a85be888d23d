"""One bit per element."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["Sign"]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """C(x) = mean|x| sign(x) per block: contractive, and so to be used with error feedback.

    Karimireddy et al., Error feedback fixes SignSGD (arXiv:1901.09847), for blocks:
    ||x - C(x)||^2 = (1 - ||x||_1^2 / (d ||x||_2^2)) ||x||^2. Payload: 4 bytes per block, then one bit per element.
    """

    name: ClassVar[str] = "sign"
    unbiased: ClassVar[bool] = False
    block: int = 1024

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 32, 4096)
        if self.block % 32:
            raise ValueError(f"{self.name} packs 32 signs at a time, but its block is {self.block}; use a multiple.")

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + -(-numel // 8)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel():
            kernels_for(x).sign_encode(x, None, payload, self.block)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        if x.numel():
            kernels_for(x).sign_encode(x, residual, payload, self.block)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).sign_decode(payload, out, self.block, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).sign_decode(payload, acc, self.block, add=True)
