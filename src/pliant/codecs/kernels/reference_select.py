"""Choosing elements, in plain torch: the twins of select.c, and the random numbers that all kernels share."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = [
    "add_at",
    "block_rms",
    "blocks_add",
    "blocks_clear",
    "blocks_gather",
    "clear_at",
    "random_bits",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "topk_encode",
]

_MASK = 0xFFFFFFFF
_INFINITE_BITS = 0x7F800000


def random_bits(seed: int, index: Tensor) -> Tensor:
    """Return 32 random bits for each element of index, as int64; see random_bits in kernels.h."""
    h = (index * 0x9E3779B1 + seed) & _MASK
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _blocks(x: Tensor, block: int, fill: float) -> Tensor:
    """Return x as (num_blocks, block), the last one filled up."""
    return pad(x, (0, -x.numel() % block), value=fill).view(-1, block)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    k = indices.numel()
    magnitude = x.view(torch.int32) & 0x7FFFFFFF  # the order of |x|, NaN above all
    if stride == 1:
        chosen = torch.sort(magnitude, descending=True, stable=True).indices[:k].sort().values
    else:
        sample = magnitude[::stride].sort(descending=True).values
        least = sample[min(max(k // stride, 1), sample.numel()) - 1]
        reached = (magnitude >= least).nonzero().view(-1)
        chosen, beyond = reached[:k], reached[k:]
        lost = beyond[magnitude[beyond] >= _INFINITE_BITS][:1]
        chosen[chosen.numel() - lost.numel() :] = lost
    indices.fill_(-1)
    values.zero_()
    indices[: chosen.numel()] = chosen.to(torch.int32)
    values[: chosen.numel()] = x[chosen]


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    real = indices >= 0
    acc.index_add_(0, indices[real].long(), values[real])


def clear_at(x: Tensor, indices: Tensor) -> None:
    x[indices[indices >= 0].long()] = 0


def block_rms(x: Tensor, rms: Tensor, block: int) -> None:
    rms.copy_(_blocks(x, block, 0.0).double().square().mean(1).sqrt())


def _elements(indices: Tensor, numel: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the places of the elements of blocks, int64 (k, block), and which of them exist."""
    where = indices.long()[:, None] * block + torch.arange(block, device=indices.device)
    return where, where < numel


def blocks_gather(x: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    values.view(-1, block).copy_(_blocks(x, block, 0.0)[indices.long()])


def blocks_add(acc: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    where, real = _elements(indices, acc.numel(), block)
    acc.index_add_(0, where[real], values.view(-1, block)[real])


def blocks_clear(x: Tensor, indices: Tensor, block: int) -> None:
    where, real = _elements(indices, x.numel(), block)
    x[where[real]] = 0


def _places(numel: int, num_values: int, seed: int, device: torch.device) -> Tensor:
    j = torch.arange(num_values, device=device)
    first, following = j * numel // num_values, (j + 1) * numel // num_values
    return first + (random_bits(seed, j) * (following - first) >> 32)


def randomk_gather(x: Tensor, values: Tensor, seed: int) -> None:
    values.copy_(x[_places(x.numel(), values.numel(), seed, x.device)])


def randomk_add(acc: Tensor, values: Tensor, seed: int) -> None:
    acc[_places(acc.numel(), values.numel(), seed, acc.device)] += values


def randomk_clear(x: Tensor, num_values: int, seed: int) -> None:
    x[_places(x.numel(), num_values, seed, x.device)] = 0
