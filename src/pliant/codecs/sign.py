"""Codec of one bit per element."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["Sign"]


@dataclass(frozen=True, kw_only=True)
class Sign(BlockCodec):
    """C(x) = mean|x| sign(x) per block: contractive, and so to be used with error feedback.

    Karimireddy et al., Error feedback fixes SignSGD (arXiv:1901.09847), for blocks:
    ||x - C(x)||^2 = (1 - ||x||_1^2 / (d ||x||_2^2)) ||x||^2. Payload: 4 bytes per block, then one bit per element.
    """

    name: ClassVar[str] = "sign"
    unbiased: ClassVar[bool] = False
    kernel: ClassVar[str] = "sign"
    block: int = 1024

    @property
    def code_bits(self) -> int:
        return 1
