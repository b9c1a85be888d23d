"""The largest coefficients of a cosine transform: what is smooth or repeats itself costs one of them."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs.checks import check_decode
from pliant.codecs.templates import SparsifyingCodec

__all__ = ["Dct"]

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, kw_only=True)
class Dct(SparsifyingCodec):
    """Cut x into flat blocks, transform each, keep the k = ceil(ratio block) largest coefficients of each.

    The transform is the orthonormal DCT-II (Ahmed, Natarajan, Rao, 1974) by a matrix product. With D[f, i] = sqrt((1 +
    [f > 0]) / block) cos(pi (2 i + 1) f / (2 block)), c = D x and x = D^T c. So ||x - C(x)||^2 <= (1 - k/block)
    ||x||^2. A vector is seen flat, whatever the shapes of the tensors in it; a last block that is shorter is filled
    with zeros. Peng et al., DeMo (arXiv:2411.19870), who transform tiles of matrices.

    Payload: for each block k float32 coefficients, each divided by 2 sqrt(block), so that none overflows; then for
    each block k frequencies in one byte each; then zeros up to a multiple of 4 bytes. NaN and Inf become NaN in all
    of their block. Of a vector near the largest float32, what would be beyond it is decoded as it. The bits depend
    on torch's matrix product: ranks that must agree to the bit need processors of one kind.
    """

    name: ClassVar[str] = "dct"
    ratio: float = 1 / 64
    block: int = 64

    @property
    def granularity(self) -> int:
        return self.block

    @property
    def kept(self) -> int:
        """Return k, the number of coefficients kept of each block."""
        return math.ceil(self.ratio * self.block)

    def count(self, numel: int) -> int:
        """Return the number of coefficients kept of all blocks."""
        return -(-numel // self.block) * self.kept

    def nbytes(self, numel: int) -> int:
        return 4 * self.count(numel) + -(-self.count(numel) // 4) * 4

    def values(self, payload: Tensor, numel: int) -> Tensor:
        """Return the coefficients kept, float32 (num_blocks, k), as a view."""
        return payload[: 4 * self.count(numel)].view(torch.float32).view(-1, self.kept)

    def indices(self, payload: Tensor, numel: int) -> Tensor:
        """Return their frequencies, uint8 (num_blocks, k), as a view."""
        return payload[4 * self.count(numel) : 5 * self.count(numel)].view(-1, self.kept)

    def decode_sum(self, payloads: Tensor, out: Tensor) -> None:
        for payload in payloads:
            check_decode(self.name, payload, out, self.nbytes(out.numel()))
        if out.numel():
            out.copy_(self._restore(payloads, out.numel()))

    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        filled = torch.nn.functional.pad(x, (0, -x.numel() % self.block)).view(-1, self.block)
        coefficients = torch.mm(filled, _basis(self.block, x.device).t())  # (num_blocks, block)
        chosen = coefficients.abs().topk(self.kept, dim=1, sorted=False).indices  # NaN is above all
        values = coefficients.gather(1, chosen)
        self.values(payload, x.numel()).copy_(values.masked_fill_(values.isinf(), math.nan))
        self.indices(payload, x.numel()).copy_(chosen)
        payload[5 * self.count(x.numel()) :] = 0

    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        acc.add_(self._restore(payload.view(1, -1), acc.numel()))

    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        x.sub_(self._restore(payload.view(1, -1), x.numel()))

    def _restore(self, payloads: Tensor, numel: int) -> Tensor:
        """Return the sum of what payloads, (num, nbytes), carry: added in their order, then one inverse transform."""
        basis = _basis(self.block, payloads.device)
        coefficients = torch.zeros(-(-numel // self.block), self.block, dtype=torch.float32, device=payloads.device)
        for payload in payloads:
            chosen = self.indices(payload, numel).long()
            values = self.values(payload, numel)
            if is_accelerator(payload.device):  # nobody waits to know: what was damaged is poisoned
                values = torch.where(chosen < self.block, values, torch.nan)
                chosen = chosen.clamp(max=self.block - 1)
            elif int(chosen.max()) >= self.block:
                raise ValueError(
                    f"a dct payload names the frequency {int(chosen.max())}, which is outside of a block of "
                    f"{self.block}; it was damaged, or encoded with another block."
                )
            coefficients.scatter_add_(1, chosen, values)
        restored = torch.mm(coefficients, basis).view(-1)[:numel]
        return restored.mul_(4 * self.block).clamp_(-_LARGEST, _LARGEST)  # NaN stays NaN


@cache
def _basis(block: int, device: torch.device) -> Tensor:
    """Return D / (2 sqrt(block)), float32 (block, block): products with it cannot overflow, either way."""
    frequency = torch.arange(block, dtype=torch.float64).view(-1, 1)
    place = torch.arange(block, dtype=torch.float64)
    cosines = torch.cos(math.pi * (2 * place + 1) * frequency / (2 * block)) * math.sqrt(2 / block)
    cosines[0] /= math.sqrt(2)
    return (cosines / (2 * math.sqrt(block))).to(torch.float32).to(device)
