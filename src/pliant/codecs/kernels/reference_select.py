"""Choosing elements, in plain torch: the twins of select.c, and the random numbers that all kernels share."""

import torch
from torch import Tensor

from pliant.codecs.kernels.reference_blocks import in_blocks

__all__ = [
    "add_at",
    "block_rms",
    "blocks_add",
    "blocks_clear",
    "blocks_gather",
    "chunks_encode",
    "clear_at",
    "random_bits",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "topk_encode",
]

_MASK = 0xFFFFFFFF
_INFINITE_BITS = 0x7F800000
_NOTHING = -0.0
"""Added to any number, it leaves its bits alone."""


def random_bits(seed: int | Tensor, index: Tensor) -> Tensor:
    """Return 32 random bits for each element of index, as int64; see random_bits in kernels.h."""
    h = (index * 0x9E3779B1 + seed) & _MASK
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    k = indices.numel()
    magnitude = x.view(torch.int32) & 0x7FFFFFFF  # the order of |x|, NaN above all
    if stride == 1:
        chosen = torch.sort(magnitude, descending=True, stable=True).indices[:k].sort().values
    else:
        sample = magnitude[::stride].sort(descending=True).values
        least = sample[min(max(k // stride, 1), sample.numel()) - 1]
        chosen = _first_reaching(magnitude, least, k)
    indices.copy_(chosen)
    values.copy_(torch.where(chosen >= 0, x[chosen.clamp(min=0)], 0.0))


def chunks_encode(x: Tensor, places: Tensor, values: Tensor, block: int, kept: int) -> None:
    """Write the places of the `kept` largest |x| of each chunk, ascending, and their values; see select.c."""
    magnitude, whole = x.view(torch.int32) & 0x7FFFFFFF, x.numel() // block
    num = whole * kept
    for first, end, chosen in ((0, whole * block, places[:num]), (whole * block, x.numel(), places[num:])):
        if chosen.numel():
            rows = magnitude[first:end].view(-1, min(block, end - first))
            order = torch.sort(rows, dim=1, descending=True, stable=True).indices[:, : chosen.numel() // len(rows)]
            starts = torch.arange(first, end, rows.shape[1], device=x.device)
            chosen.copy_((order.sort(1).values + starts[:, None]).view(-1))
    values.copy_(x.index_select(0, places))


def _first_reaching(magnitude: Tensor, least: Tensor, k: int) -> Tensor:
    """Return the places of the first k that reach `least`, (k,), and -1 where there are fewer.

    The last one gives way to the first beyond them that is not finite. Nothing here has a size that values decide.
    """
    place = torch.arange(magnitude.numel(), device=magnitude.device)
    reached = magnitude >= least
    slot = torch.where(reached, reached.cumsum(0) - 1, k)
    lost = torch.where((slot >= k) & (magnitude >= _INFINITE_BITS), place, magnitude.numel()).amin()
    chosen = place.new_full((k + 1,), -1).scatter_(0, slot.clamp(max=k), place)[:k]
    chosen[k - 1] = torch.where(lost < magnitude.numel(), lost, chosen[k - 1])
    return chosen


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    acc.index_add_(0, indices.long().clamp(min=0), torch.where(indices >= 0, values, _NOTHING))


def clear_at(x: Tensor, indices: Tensor) -> None:
    _clear(x, torch.where(indices >= 0, indices, x.numel()).long())


def _clear(x: Tensor, places: Tensor) -> None:
    """Set x to 0 at places, int64 (num,); one at x.numel() is none."""
    sent = torch.zeros(x.numel() + 1, dtype=torch.bool, device=x.device).index_fill_(0, places, True)
    x.masked_fill_(sent[:-1], 0)


def block_rms(x: Tensor, rms: Tensor, block: int) -> None:
    rms.copy_(in_blocks(x, block, 0.0).double().square().mean(1).sqrt())


def _elements(indices: Tensor, numel: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the places of the elements of blocks, int64 (k, block), and which of them exist."""
    where = indices.long()[:, None] * block + torch.arange(block, device=indices.device)
    return where, where < numel


def blocks_gather(x: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    values.view(-1, block).copy_(in_blocks(x, block, 0.0)[indices.long()])


def blocks_add(acc: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    where, real = _elements(indices, acc.numel(), block)
    added = torch.where(real, values.view(-1, block), _NOTHING)
    acc.index_add_(0, where.clamp(max=acc.numel() - 1).view(-1), added.view(-1))


def blocks_clear(x: Tensor, indices: Tensor, block: int) -> None:
    _clear(x, _elements(indices, x.numel(), block)[0].clamp(max=x.numel()).view(-1))


def _places(numel: int, num_values: int, seed: int | Tensor, device: torch.device) -> Tensor:
    j = torch.arange(num_values, device=device)
    first, following = j * numel // num_values, (j + 1) * numel // num_values
    return first + (random_bits(seed, j) * (following - first) >> 32)


def randomk_gather(x: Tensor, values: Tensor, seed: int) -> None:
    values.copy_(x[_places(x.numel(), values.numel(), seed, x.device)])


def randomk_add(acc: Tensor, values: Tensor, seed: int | Tensor) -> None:
    acc[_places(acc.numel(), values.numel(), seed, acc.device)] += values


def randomk_clear(x: Tensor, num_values: int, seed: int | Tensor) -> None:
    x[_places(x.numel(), num_values, seed, x.device)] = 0
