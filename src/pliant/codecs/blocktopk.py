"""The blocks of the largest energy."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.checks import check_decode, check_encode, require_range
from pliant.codecs.kernels import kernels_for

__all__ = ["BlockTopK"]


@dataclass(frozen=True, kw_only=True)
class BlockTopK:
    """Keep the k = ceil(ratio num_blocks) blocks of the largest 2-norm: one index pays for a whole block.

    Contractive with delta = k / num_blocks. Payload: k int32 block indices, then k blocks of float32; a last block
    that is shorter is filled with zeros.
    """

    name: ClassVar[str] = "blocktopk"
    unbiased: ClassVar[bool] = False
    ratio: float = 0.01
    block: int = 128

    def __post_init__(self) -> None:
        require_range(self.name, "ratio", self.ratio, 1e-9, 1.0)
        require_range(self.name, "block", self.block, 1, 1 << 20)

    @property
    def granularity(self) -> int:
        return self.block

    def count(self, numel: int) -> int:
        """Return k."""
        num_blocks = -(-numel // self.block)
        return min(num_blocks, max(1, math.ceil(self.ratio * num_blocks)))

    def nbytes(self, numel: int) -> int:
        return 4 * self.count(numel) * (1 + self.block)

    def indices(self, payload: Tensor) -> Tensor:
        """Return the chosen blocks, int32 (k,), as a view."""
        return payload[: payload.numel() // (1 + self.block)].view(torch.int32)

    def values(self, payload: Tensor) -> Tensor:
        """Return their elements, float32 (k, block), as a view."""
        return payload[payload.numel() // (1 + self.block) :].view(torch.float32).view(-1, self.block)

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        check_encode(self.name, x, payload, self.nbytes(x.numel()))
        if x.numel() == 0:
            return
        kernel, chosen = kernels_for(x), self.indices(payload)
        rms = torch.empty(-(-x.numel() // self.block), device=x.device)  # (num_blocks,)
        kernel.block_rms(x, rms, self.block)
        kernel.topk_encode(rms, chosen, torch.empty(chosen.numel(), device=x.device), 1)
        kernel.blocks_gather(x, chosen, self.values(payload), self.block)

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
        kernels_for(acc).blocks_add(acc, self.indices(payload), self.values(payload), self.block)

    def clear_sent(self, payload: Tensor, x: Tensor) -> None:
        """Set x, (numel,), to zero where the payload carries it."""
        check_decode(self.name, payload, x, self.nbytes(x.numel()))
        kernels_for(x).blocks_clear(x, self.indices(payload), self.block)
