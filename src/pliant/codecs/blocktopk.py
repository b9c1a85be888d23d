"""The blocks of the largest energy."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.codecs.templates import SparsifyingCodec

__all__ = ["BlockTopK"]


@dataclass(frozen=True, kw_only=True)
class BlockTopK(SparsifyingCodec):
    """Keep the k = ceil(ratio num_blocks) blocks of the largest 2-norm: one index pays for a whole block.

    Contractive with delta = k / num_blocks. Payload: k int32 block indices, then k blocks of float32; a last block
    that is shorter is filled with zeros.
    """

    name: ClassVar[str] = "blocktopk"
    block: int = 128

    @property
    def granularity(self) -> int:
        return self.block

    def nbytes(self, numel: int) -> int:
        return 4 * self.count(numel) * (1 + self.block)

    def indices(self, payload: Tensor) -> Tensor:
        """Return the chosen blocks, int32 (k,), as a view."""
        return payload[: payload.numel() // (1 + self.block)].view(torch.int32)

    def values(self, payload: Tensor) -> Tensor:
        """Return their elements, float32 (k, block), as a view."""
        return payload[payload.numel() // (1 + self.block) :].view(torch.float32).view(-1, self.block)

    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        kernel, chosen = kernels_for(x), self.indices(payload)
        rms = torch.empty(-(-x.numel() // self.block), dtype=torch.float32, device=x.device)  # (num_blocks,)
        kernel.block_rms(x, rms, self.block)
        kernel.topk_encode(rms, chosen, torch.empty(chosen.numel(), dtype=torch.float32, device=x.device), 1)
        kernel.blocks_gather(x, chosen, self.values(payload), self.block)

    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        kernels_for(acc).blocks_add(acc, self.indices(payload), self.values(payload), self.block)

    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        kernels_for(x).blocks_clear(x, self.indices(payload), self.block)
