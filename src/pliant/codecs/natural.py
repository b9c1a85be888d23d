"""Stochastic rounding to powers of two."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["Natural"]


@dataclass(frozen=True, kw_only=True)
class Natural(BlockCodec):
    """Round |x| to one of the two powers of two around it, at random so that the mean is x: one byte per element.

    Horvath et al., Natural compression (arXiv:1905.10988), definition 2; the variance is at most x^2 / 8. A code is
    a sign bit and the places below the block's largest power; what lies more than 126 powers below becomes zero or
    the least power, still unbiased; powers end at 2^127. Payload: 4 bytes per block, then the codes.
    """

    name: ClassVar[str] = "natural"
    unbiased: ClassVar[bool] = True
    kernel: ClassVar[str] = "natural"
    is_seeded: ClassVar[bool] = True
    block: int = 2048

    @property
    def code_bits(self) -> int:
        return 8
