"""Shorter floating-point formats."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, require_range

__all__ = ["Bf16", "Fp8", "Fp16"]

_FP8_MAX = 448.0


class _Cast:
    """Round to the nearest of a 16-bit format; sums of payloads survive."""

    unbiased: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype]
    name: ClassVar[str]

    @property
    def granularity(self) -> int:
        return 1

    def nbytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        payload.view(self.dtype).copy_(x)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        out.copy_(payload.view(self.dtype))

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        acc.add_(payload.view(self.dtype))

    def summands(self, payload: Tensor) -> Tensor:
        return payload.view(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Bf16(_Cast):
    """bfloat16: 8 bits of significand, the range of float32. Payload: 2 bytes per element."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Fp16(_Cast):
    """float16: 11 bits of significand; beyond 65504 it is infinite. Payload: 2 bytes per element."""

    name: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True, kw_only=True)
class Fp8:
    """e4m3 with one scale per block: x max|x|^-1 448 rounded to 4 bits of significand.

    Micikevicius et al., FP8 formats (arXiv:2209.05433). Payload: 4 bytes per block, then one byte per element.
    """

    name: ClassVar[str] = "fp8"
    unbiased: ClassVar[bool] = False
    block: int = 1024

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
        blocks = torch.nn.functional.pad(x, (0, -x.numel() % self.block)).view(-1, self.block)
        step = blocks.abs().amax(1) / _FP8_MAX  # (num_blocks,)
        usable = step.isfinite() & (step >= 1e-37)
        scaled = torch.where(usable[:, None], blocks / step[:, None], 0.0).clamp(-_FP8_MAX, _FP8_MAX)
        header = torch.where(step.isfinite(), torch.where(usable, step, 0.0), torch.nan)
        payload[: 4 * step.numel()] = header.view(torch.uint8)
        payload[4 * step.numel() :] = scaled.view(-1)[: x.numel()].to(torch.float8_e4m3fn).view(torch.uint8)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        out.copy_(self._decoded(payload, out.numel()))

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        acc.add_(self._decoded(payload, acc.numel()))

    def _decoded(self, payload: Tensor, numel: int) -> Tensor:
        num_blocks = -(-numel // self.block)
        step = payload[: 4 * num_blocks].view(torch.float32).repeat_interleave(self.block)[:numel]
        return payload[4 * num_blocks :].view(torch.float8_e4m3fn).float() * step
