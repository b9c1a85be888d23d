"""8-bit min-max quantization: BAGUA's codec, per block and without its flaws."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["MinMax8"]


@dataclass(frozen=True, kw_only=True)
class MinMax8:
    """Round to a grid of 256 values between the least and the largest of each block.

    step = (max - min) / 255; where zero lies between them the grid is the multiples of the step, so that zero stays
    zero, as in BAGUA (Gan et al., arXiv:2107.01499); elsewhere it starts at min. Codes are clamped to 0..255, and a
    constant block is exact. |error| <= step / 2. Payload: 12 bytes per block, then one byte per element.
    """

    name: ClassVar[str] = "minmax8"
    unbiased: ClassVar[bool] = False
    block: int = 2048

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 1, 4096)

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 12 * -(-numel // self.block) + numel

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        kernels_for(x).minmax8_encode(x, None, payload, self.block)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        kernels_for(x).minmax8_encode(x, residual, payload, self.block)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).minmax8_decode(payload, out, self.block, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).minmax8_decode(payload, acc, self.block, add=True)
