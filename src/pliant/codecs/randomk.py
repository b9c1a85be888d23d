"""Random elements, the same on every rank."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs.checks import fold_seed
from pliant.codecs.finite import finite_flag
from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import SparsifyingCodec

__all__ = ["RandomK"]


@dataclass(frozen=True, kw_only=True)
class RandomK(SparsifyingCodec):
    """Keep one element, at random, of each of k = ceil(ratio numel) cells; ranks that share the seed share the places.

    So values may be added up on the way. E ||x - C(x)||^2 = (1 - k/d) ||x||^2 for equal cells (Stich et al.,
    arXiv:1809.07599, random-k); values are not scaled up, so it is to be used with error feedback.
    Payload: the seed in 8 bytes, then k float32 values.
    """

    name: ClassVar[str] = "randomk"

    def nbytes(self, numel: int) -> int:
        return 8 + 4 * self.count(numel) if numel else 0

    def summands(self, payload: Tensor) -> Tensor:
        return payload[8:].view(torch.float32)

    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        payload[:8].view(torch.int64).fill_(fold_seed(seed))
        kernel = kernels_for(x)
        kernel.randomk_gather(x, self.summands(payload), fold_seed(seed))
        # A place that was not chosen must not hide an overflow.
        if is_accelerator(x.device):
            self.summands(payload).masked_fill_(~finite_flag(x), torch.nan)
        elif not kernel.all_finite(x):
            self.summands(payload).fill_(torch.nan)

    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        kernels_for(acc).randomk_add(acc, self.summands(payload), _seed(payload))

    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        kernels_for(x).randomk_clear(x, self.count(x.numel()), _seed(payload))


def _seed(payload: Tensor) -> Any:
    """Return the seed in a payload; of one on an accelerator as a tensor () there, which nobody waits for."""
    seed = payload[:8].view(torch.int64)[0]
    return seed if is_accelerator(payload.device) else int(seed)
