"""Stochastic signs and zeros."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["Ternary"]


@dataclass(frozen=True, kw_only=True)
class Ternary(BlockCodec):
    """s sign(x) b with s = max|x| per block and b = 1 with probability |x| / s: unbiased.

    Wen et al., TernGrad (arXiv:1705.07878), equations 1 and 2. It is QSGD with one level. Payload: 4 bytes per
    block, then 2 bits per element.
    """

    name: ClassVar[str] = "ternary"
    unbiased: ClassVar[bool] = True
    kernel: ClassVar[str] = "levels"
    is_seeded: ClassVar[bool] = True
    rounding: ClassVar[Mapping[str, bool]] = MappingProxyType({"stochastic": True})
    block: int = 512

    @property
    def code_bits(self) -> int:
        return 2

    @property
    def kernel_settings(self) -> tuple[int, ...]:
        return self.block, 2
