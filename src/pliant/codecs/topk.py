"""Codec of the largest elements."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import SparsifyingCodec

__all__ = ["TopK"]

_SAMPLE_STRIDE = 61
"""A prime, so that the sample of a matrix does not stay in the same columns."""
_LEAST_SAMPLE = 16
"""Elements of the sample that must reach the threshold for it to be worth anything."""


@dataclass(frozen=True, kw_only=True)
class TopK(SparsifyingCodec):
    """Keep the k = ceil(ratio numel) elements of the largest |x|; ties go to the lower index.

    ||x - C(x)||^2 <= (1 - k/d) ||x||^2 (Stich et al., arXiv:1809.07599). Exact by a radix search over the bits of
    |x|; with ``sampled=1`` the threshold comes from every 61st element, as in Deep Gradient Compression
    (arXiv:1712.01887), where k is at least 976, and slots that stay empty are sent as such. NaN and Inf are never
    left out. Payload: k int32 indices, then k float32 values.
    """

    name: ClassVar[str] = "topk"
    sampled: int = 0

    def nbytes(self, numel: int) -> int:
        return 8 * self.count(numel)

    def indices(self, payload: Tensor) -> Tensor:
        """Return the chosen places, int32 (k,), as a view; -1 marks an empty slot."""
        return payload[: payload.numel() // 2].view(torch.int32)

    def values(self, payload: Tensor) -> Tensor:
        """Return the chosen values, float32 (k,), as a view."""
        return payload[payload.numel() // 2 :].view(torch.float32)

    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        enough = self.count(x.numel()) >= _LEAST_SAMPLE * _SAMPLE_STRIDE
        stride = _SAMPLE_STRIDE if self.sampled and enough else 1
        kernels_for(x).topk_encode(x, self.indices(payload), self.values(payload), stride)

    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        kernels_for(acc).add_at(acc, self.indices(payload), self.values(payload))

    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        kernels_for(x).clear_at(x, self.indices(payload))
