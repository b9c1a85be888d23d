"""Random elements, the same on every rank."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, fold_seed, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["RandomK"]


@dataclass(frozen=True, kw_only=True)
class RandomK:
    """Keep one element, at random, of each of k = ceil(ratio numel) cells; ranks that share the seed share the places.

    So values may be added up on the way. E ||x - C(x)||^2 = (1 - k/d) ||x||^2 for equal cells (Stich et al.,
    arXiv:1809.07599, random-k); values are not scaled up, so it is to be used with error feedback.
    Payload: the seed in 8 bytes, then k float32 values.
    """

    name: ClassVar[str] = "randomk"
    unbiased: ClassVar[bool] = False
    ratio: float = 0.01

    def __post_init__(self) -> None:
        require_range(self.name, "ratio", self.ratio, 1e-9, 1.0)

    @property
    def granularity(self) -> int:
        return 1

    def count(self, numel: int) -> int:
        """Return k."""
        return min(numel, max(1, math.ceil(self.ratio * numel)))

    def nbytes(self, numel: int) -> int:
        return 8 + 4 * self.count(numel) if numel else 0

    def summands(self, payload: Tensor) -> Tensor:
        return payload[8:].view(torch.float32)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel() == 0:
            return
        payload[:8].view(torch.int64).fill_(fold_seed(seed))
        kernel = kernels_for(x)
        kernel.randomk_gather(x, self.summands(payload), fold_seed(seed))
        if not kernel.all_finite(x):
            self.summands(payload).fill_(torch.nan)  # a place that was not chosen must not hide an overflow

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
            kernels_for(acc).randomk_add(acc, self.summands(payload), int(payload[:8].view(torch.int64)))

    def clear_sent(self, payload: Tensor, x: Tensor) -> None:
        """Set x, (numel,), to zero where the payload carries it."""
        check_decode(self.name, payload, x, self.nbytes(x.numel()))
        if x.numel():
            kernels_for(x).randomk_clear(x, self.count(x.numel()), int(payload[:8].view(torch.int64)))
