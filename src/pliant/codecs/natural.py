"""Stochastic rounding to powers of two."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels.twins import random_bits

__all__ = ["Natural"]

_NUM_BINADES = 126


@dataclass(frozen=True, kw_only=True)
class Natural:
    """Round |x| to one of the two powers of two around it, at random so that the mean is x: one byte per element.

    Horvath et al., Natural compression (arXiv:1905.10988), definition 2; the variance is at most x^2 / 8. A code is
    a sign bit and the exponent counted down from the block's largest; what lies more than 126 binades below is
    rounded to zero or to the least power, still unbiased. Payload: 4 bytes per block, then the codes. Plain torch.
    """

    name: ClassVar[str] = "natural"
    unbiased: ClassVar[bool] = True
    block: int = 2048

    def __post_init__(self) -> None:
        require_range(self.name, "block", self.block, 1, 1 << 20)

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + numel

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel() == 0:
            return
        blocks = _blocks(x.abs(), self.block)  # (num_blocks, block)
        most = blocks.amax(1, keepdim=True)
        # Powers of two up to the one above the largest; 2^127 is the largest that float32 has.
        top = torch.frexp(most).exponent.clamp(-125, 127).float()
        scaled = torch.where(most.isfinite(), blocks, 0.0) * torch.exp2(
            -top.double()
        )  # 0..1, or up to 2 for the largest
        fraction, exponent = torch.frexp(scaled)  # 0.5 <= fraction < 1
        exponent = exponent.clamp(min=-_NUM_BINADES)  # lower power: 2^(exponent - 1)
        lower = torch.exp2((exponent - 1).double())
        index = torch.arange(blocks.numel(), device=x.device).view_as(blocks)
        u = (random_bits(fold_seed(seed), index) >> 8).double() * 2.0**-24
        least = exponent == -_NUM_BINADES
        up = torch.where(least & (scaled < lower), scaled / lower > u, (scaled - lower) / lower > u)
        down = torch.where(least & (scaled < lower), 0, 2 - exponent)  # code of the lower power; 0 means zero
        above = torch.where(least & (scaled < lower), 2 - exponent, 1 - exponent).clamp(min=1)
        codes = torch.where(fraction == 0, 0, torch.where(up, above, down)).view(-1)[: x.numel()]
        header = torch.where(most.isfinite(), top, torch.nan).float().view(-1).view(torch.uint8)
        payload[: header.numel()] = header
        payload[header.numel() :] = (codes | (x.signbit().long() << 7)).to(torch.uint8)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        out.copy_(self._decoded(payload, out.numel()))

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        acc.add_(self._decoded(payload, acc.numel()))

    def _decoded(self, payload: Tensor, numel: int) -> Tensor:
        num_blocks = -(-numel // self.block)
        top = payload[: 4 * num_blocks].view(torch.float32)[:, None].double()
        codes = payload[4 * num_blocks :].long()
        magnitude = _blocks(codes & 127, self.block)
        values = torch.where(magnitude == 0, 0.0 * top, torch.exp2(top + 1 - magnitude)).view(-1)[:numel]
        return torch.where(codes > 127, -values, values).float()


def _blocks(x: Tensor, block: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)
