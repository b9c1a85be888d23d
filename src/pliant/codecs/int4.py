"""Deterministic rounding to 4-bit blocks."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

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
    kernel: ClassVar[str] = "levels"
    is_seeded: ClassVar[bool] = True
    rounding: ClassVar[Mapping[str, bool]] = MappingProxyType({"stochastic": False})
    block: int = 64

    @property
    def code_bits(self) -> int:
        return 4

    @property
    def kernel_settings(self) -> tuple[int, ...]:
        return self.block, 4
