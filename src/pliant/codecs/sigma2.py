"""Codec of two bits per element: its sign, and whether it is large beside its block."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.codecs.templates import BlockCodec

__all__ = ["Sigma2"]


@dataclass(frozen=True, kw_only=True)
class Sigma2(BlockCodec):
    """Sort |x| into two bins by the standard deviation s of its block, and send each as the mean of its bin.

    C(x) = sign(x) mean{|y| : y of the block, in the bin of x}, with the border of the bins at 0.9816 s, s^2 the mean of
    x^2. For normal numbers that is the quantizer of four levels with the least squared error, 0.1175 s^2 (Max,
    "Quantizing for minimum distortion", 1960; Lloyd, 1982). Whatever the numbers, ||x - C(x)||^2 = ||x||^2 - sum over
    bins of count mean^2: contractive, and so to be used with error feedback. Changes of weights travel so in MuLoCo
    (arXiv:2505.23725) and SparseLoCo (arXiv:2508.15706), which have four bins of equal width within 6 s, so that the
    border is at 3 s. Payload: the two means, 8 bytes per block, then 2 bits per element.
    """

    name: ClassVar[str] = "sigma2"
    unbiased: ClassVar[bool] = False
    kernel: ClassVar[str] = "sigma"
    header_bytes: ClassVar[int] = 8
    block: int = 1024

    @property
    def code_bits(self) -> int:
        return 2
