"""Codecs of shorter floating-point formats."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode
from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import BlockCodec

__all__ = ["Bf16", "Fp8", "Fp16"]


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
        kernels_for(x).cast_encode(x, None, payload, self.dtype)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        kernels_for(out).cast_decode(payload, out, self.dtype, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        kernels_for(acc).cast_decode(payload, acc, self.dtype, add=True)

    def fuses(self, x: Tensor) -> bool:
        return hasattr(kernels_for(x), "cast_mean")

    def encode_gated(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        if x.numel():
            gate = torch.linalg.vector_norm(x, torch.inf)
            kernels_for(x).cast_encode(x, residual, payload, self.dtype, gate=gate)

    def encode_mean(
        self, total: Tensor, owed: Tensor | None, payloads: Tensor, payload: Tensor, seed: int, *, feedback: bool
    ) -> None:
        check_encode(self.name, total, payload, self.nbytes(total.numel()), owed)
        kernels_for(total).cast_mean(total, owed, payloads, payload, self.dtype, feedback=feedback)

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
class Fp8(BlockCodec):
    """e4m3 with one scale per block: x max|x|^-1 448 rounded to 4 bits of significand.

    Micikevicius et al., FP8 formats (arXiv:2209.05433). Payload: 4 bytes per block, then one byte per element.
    """

    name: ClassVar[str] = "fp8"
    unbiased: ClassVar[bool] = False
    kernel: ClassVar[str] = "fp8"
    block: int = 1024

    @property
    def code_bits(self) -> int:
        return 8
