"""Templates of codecs of one kind: sizes, checks, and the verbs around their kernels."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, check_settings, fold_seed
from pliant.codecs.finite import drop_nonfinite
from pliant.codecs.kernels import kernels_for

__all__ = ["BlockCodec", "SparsifyingCodec"]


@dataclass(frozen=True, kw_only=True)
class BlockCodec(ABC):
    """A code for every element, and a few numbers for each block: `header_bytes` per block, then `code_bits` each."""

    name: ClassVar[str]
    unbiased: ClassVar[bool]
    kernel: ClassVar[str]
    """Beginning of the names of its kernels: `{kernel}_encode`, `{kernel}_decode`, and, where they are fused,
    `{kernel}_mean`."""
    is_seeded: ClassVar[bool] = False
    """Whether encoding takes random numbers."""
    rounding: ClassVar[Mapping[str, bool]] = MappingProxyType({})
    """Way in which encoding rounds, where a kernel knows several."""
    header_bytes: ClassVar[int] = 4
    block: int

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    @abstractmethod
    def code_bits(self) -> int:
        """Bits of an element's code."""

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return self.header_bytes * -(-numel // self.block) + -(-numel * self.code_bits // 8)

    @property
    def kernel_settings(self) -> tuple[int, ...]:
        """Numbers that the kernels need beside tensors: elements of a block, and what a codec adds."""
        return (self.block,)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel():
            self._kernel(x, "encode")(x, None, payload, *self._encoding(seed), **self.rounding)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        if x.numel():
            self._kernel(x, "encode")(x, residual, payload, *self._encoding(seed), **self.rounding)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        self._kernel(out, "decode")(payload, out, *self.kernel_settings, add=False)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        self._kernel(acc, "decode")(payload, acc, *self.kernel_settings, add=True)

    def fuses(self, x: Tensor) -> bool:
        return hasattr(kernels_for(x), f"{self.kernel}_mean")

    def encode_gated(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        if x.numel():
            gate = torch.linalg.vector_norm(x, torch.inf)
            self._kernel(x, "encode")(x, residual, payload, *self._encoding(seed), **self.rounding, gate=gate)

    def encode_mean(
        self, total: Tensor, owed: Tensor | None, payloads: Tensor, payload: Tensor, seed: int, *, feedback: bool
    ) -> None:
        check_encode(self.name, total, payload, self.nbytes(total.numel()), owed)
        if total.numel():
            mean = self._kernel(total, "mean")
            mean(total, owed, payloads, payload, *self._encoding(seed), **self.rounding, feedback=feedback)

    def _encoding(self, seed: int) -> tuple[int, ...]:
        return (*self.kernel_settings, fold_seed(seed)) if self.is_seeded else self.kernel_settings

    def _kernel(self, x: Tensor, verb: str) -> Callable[..., None]:
        return getattr(kernels_for(x), f"{self.kernel}_{verb}")


@dataclass(frozen=True, kw_only=True)
class SparsifyingCodec(ABC):
    """Some elements (or coefficients) as they are, and nothing of the others. NaN and Inf are never left out."""

    name: ClassVar[str]
    unbiased: ClassVar[bool] = False
    ratio: float = 0.01

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def granularity(self) -> int:
        return 1

    def count(self, numel: int) -> int:
        """Return k, the number of units chosen."""
        units = -(-numel // self.granularity)
        return min(units, max(1, math.ceil(self.ratio * units)))

    @abstractmethod
    def nbytes(self, numel: int) -> int:
        """Return the exact payload size in bytes for `numel` elements."""

    @abstractmethod
    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        """Choose, and write what was chosen; checked, and not empty."""

    @abstractmethod
    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        """Add what was chosen; checked, and not empty."""

    @abstractmethod
    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        """Take away what was chosen: elements sent as they are become zero; checked, and not empty."""

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel():
            self.kernel_encode(x, payload, seed)

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()), residual)
        residual.add_(x)
        self.encode(residual, payload, seed)
        self.clear_sent(payload, residual)

    def decode(self, payload: Tensor, out: Tensor) -> None:
        check_decode(self.name, payload, out, self.nbytes(out.numel()))
        out.zero_()
        self.decode_add(payload, out)

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        check_decode(self.name, payload, acc, self.nbytes(acc.numel()))
        if acc.numel():
            self.kernel_add(payload, acc)

    def decode_sum(self, payloads: Tensor, out: Tensor) -> None:
        """Overwrite out, float32 (numel,), by the sum of what the rows of payloads, (num, nbytes), carry, in order."""
        out.zero_()
        for payload in payloads:
            self.decode_add(payload, out)

    def clear_sent(self, payload: Tensor, x: Tensor) -> None:
        """Take from x, (numel,), what the payload carries of it: zero is left where elements are sent as they are.

        Elements that have overflowed become zero whether they were sent or not: they poison this payload, and no later
        one.
        """
        check_decode(self.name, payload, x, self.nbytes(x.numel()))
        if x.numel():
            self.kernel_clear(payload, x)
            drop_nonfinite(x)
