"""Stochastic rounding to a few levels."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["Qsgd"]


@dataclass(frozen=True, kw_only=True)
class Qsgd(BlockCodec):
    """Round x s / ||x||_max, per block, up or down at random to an integer of -s..s, s = 2^(bits-1) - 1: unbiased.

    Alistarh et al., QSGD (arXiv:1610.02132), section 3, with the maximum norm instead of the 2-norm: with few levels
    its variance is far smaller, at most d s^-2 / 4 of the squared maximum. Payload: 4 bytes per block, then codes.
    """

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True
    kernel: ClassVar[str] = "levels"
    is_seeded: ClassVar[bool] = True
    rounding: ClassVar[Mapping[str, bool]] = MappingProxyType({"stochastic": True})
    block: int = 512
    bits: int = 8

    @property
    def code_bits(self) -> int:
        return self.bits

    @property
    def kernel_settings(self) -> tuple[int, ...]:
        return self.block, self.bits
