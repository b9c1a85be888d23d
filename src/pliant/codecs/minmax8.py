"""8-bit min-max quantization: BAGUA's codec, per block and without its flaws."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["MinMax8"]


@dataclass(frozen=True, kw_only=True)
class MinMax8(BlockCodec):
    """Round to a grid of 256 values between the least and the largest of each block.

    step = (max - min) / 255; where zero lies between them the grid is the multiples of the step, so that zero stays
    zero, as in BAGUA (Gan et al., arXiv:2107.01499); elsewhere it starts at min. Codes are clamped to 0..255, and a
    constant block is exact. |error| <= step / 2. Payload: 12 bytes per block, then one byte per element.
    """

    name: ClassVar[str] = "minmax8"
    unbiased: ClassVar[bool] = False
    kernel: ClassVar[str] = "minmax8"
    header_bytes: ClassVar[int] = 12
    block: int = 2048

    @property
    def code_bits(self) -> int:
        return 8
