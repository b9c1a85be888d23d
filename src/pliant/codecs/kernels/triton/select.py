# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The k largest of a vector, exactly, without a look from the host: a radix search over the bits, then compaction.

Three passes count the numbers whose upper bits are those of the k-th largest so far, by their next bits: 11 (exponent
and 3 bits of significand), 10 and 10. A fourth counts, tile by tile, what is above and what is equal; from the running
sums of these counts a fifth knows the slot of each: in ascending order of places, ties to the lower place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.launch import launch
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, magnitude_of

__all__ = [
    "add_at",
    "add_at_kernel",
    "bin_kernel",
    "clear_at",
    "clear_at_kernel",
    "compact_kernel",
    "count_kernel",
    "histogram_kernel",
    "lost_kernel",
    "poison_kernel",
    "topk_encode",
]

_TILE = 2048
_PASSES = ((20, 2048), (10, 1024), (0, 1024))  # bits below those that are counted, and bins
_NOWHERE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def histogram_kernel(x, state, counts, n, stride, SHIFT: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr):
    """Count every stride-th number by its bits from SHIFT on, if those above them are the ones of the state."""
    first = tl.program_id(0) * TILE
    at = tl.arange(0, TILE)
    inside = at < n - first
    bits = magnitude_of(tl.load(x + (first + at).to(tl.int64) * stride, inside, 0.0)) >> SHIFT
    if SHIFT < 20:
        inside = inside & (bits // BINS == (tl.load(state) >> SHIFT) // BINS)
    found = tl.histogram(bits % BINS, BINS, mask=inside)
    tl.atomic_add(counts + tl.arange(0, BINS), found, mask=found > 0, sem="relaxed")


@triton.jit
def bin_kernel(state, counts, SHIFT: tl.constexpr, BINS: tl.constexpr):
    """Find the bin of the k-th largest; clear the counts. State: its bits so far, and its rank among what is left."""
    at = tl.arange(0, BINS)
    count = tl.load(counts + at)
    rank = tl.load(state + 1)
    above = tl.cumsum(count, 0, reverse=True) - count  # strictly above each bin
    here = (above < rank) & (above + count >= rank)
    tl.store(counts + at, tl.zeros_like(count))
    tl.store(state, tl.load(state) + (tl.sum(tl.where(here, at, 0), 0) << SHIFT))
    tl.store(state + 1, rank - tl.sum(tl.where(here, above, 0), 0))


@triton.jit
def count_kernel(x, state, above, ties, n, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    at = tl.arange(0, TILE)
    bits = tl.where(at < n - first, magnitude_of(tl.load(x + first + at, at < n - first, 0.0)), -1)
    least = tl.load(state)
    tl.store(above + tl.program_id(0), tl.sum((bits > least).to(tl.int32), 0))
    tl.store(ties + tl.program_id(0), tl.sum((bits == least).to(tl.int32), 0))


@triton.jit
def compact_kernel(x, state, above, ties, indices, values, n, k, TIES: tl.constexpr, TILE: tl.constexpr):
    """Write places and values of what is above the threshold, and of the first so many equal to it, or, without TIES,
    the first k of both; then state[2] becomes the first place beyond them that is not finite.
    """
    t = tl.program_id(0)
    first = t * TILE
    at = tl.arange(0, TILE)
    inside = at < n - first
    v = tl.load(x + first + at, inside, 0.0)
    bits = tl.where(inside, magnitude_of(v), -1)
    least = tl.load(state)
    larger, equal = (bits > least).to(tl.int32), (bits == least).to(tl.int32)
    larger_before = tl.load(above + t) + tl.cumsum(larger, 0) - larger  # counted from the start of the vector
    equal_before = tl.load(ties + t) + tl.cumsum(equal, 0) - equal
    if TIES:
        wanted = tl.load(state + 1)
        slot = larger_before + tl.minimum(equal_before, wanted)
        taken = (larger > 0) | ((equal > 0) & (equal_before < wanted))
    else:
        slot = larger_before + equal_before
        reached = bits >= least
        taken = reached & (slot < k)
        lost = reached & (slot >= k) & (bits >= INFINITE_BITS)
        place = tl.min(tl.where(lost, first + at, _NOWHERE), 0)
        tl.atomic_min(state + 2, place, mask=place < _NOWHERE)
    tl.store(indices + slot, first + at, taken)
    tl.store(values + slot, v, taken)


@triton.jit
def lost_kernel(x, state, indices, values, k):
    """Give the last slot to what is not finite and found no slot."""
    place = tl.load(state + 2)
    is_lost = place < _NOWHERE
    tl.store(indices + k - 1, place, is_lost)
    tl.store(values + k - 1, tl.load(x + place, is_lost, 0.0), is_lost)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    """Write the k places of the largest |x|, int32 ascending, and their values; see select.c. Counts are allocated."""
    n, k = x.numel(), indices.numel()
    sample = n if stride == 1 else triton.cdiv(n, stride)
    rank = k if stride == 1 else min(max(k // stride, 1), sample)
    state = torch.zeros(4, dtype=torch.int32, device=x.device)
    state[1:2].fill_(rank)
    state[2:3].fill_(0x7FFFFFFF)
    counts = torch.zeros(_PASSES[0][1], dtype=torch.int32, device=x.device)
    for shift, bins in _PASSES:
        tiles = (triton.cdiv(sample, _TILE),)
        of_pass = {"SHIFT": shift, "BINS": bins}
        launch(histogram_kernel, tiles, (x, state, counts, sample, stride), {**of_pass, "TILE": _TILE})
        launch(bin_kernel, (1,), (state, counts), of_pass)
    tiles = (triton.cdiv(n, _TILE),)
    per_tile = torch.empty(2, tiles[0], dtype=torch.int32, device=x.device)
    launch(count_kernel, tiles, (x, state, per_tile[0], per_tile[1], n), {"TILE": _TILE})
    before = per_tile.cumsum(1, dtype=torch.int32).sub_(per_tile)
    if stride != 1:
        indices.fill_(-1)
        values.zero_()
    arguments = x, state, before[0], before[1], indices, values, n, k
    launch(compact_kernel, tiles, arguments, {"TIES": stride == 1, "TILE": _TILE})
    if stride != 1:
        launch(lost_kernel, (1,), (x, state, indices, values, k), {})


@triton.jit
def add_at_kernel(acc, indices, values, n, k, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.load(indices + at, at < k, -1)
    real = (place >= 0) & (place < n)
    v = tl.load(values + at, at < k, 0.0)
    tl.store(acc + place, tl.load(acc + place, real, 0.0) + v, real)


@triton.jit
def poison_kernel(acc, indices, n, k, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.load(indices + at, at < k, -1)
    strays = tl.sum(((place < -1) | (place >= n)).to(tl.int32), 0)
    tl.store(acc, float("nan"), strays > 0)


@triton.jit
def clear_at_kernel(x, indices, n, k, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.load(indices + at, at < k, -1)
    tl.store(x + place, 0.0, (place >= 0) & (place < n))


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    """Add values, float32 (k,), at distinct places of acc, int32, -1 for none.

    A place outside of acc poisons its first element, since nobody can raise without a look at the device.
    """
    n, k = acc.numel(), indices.numel()
    launch(add_at_kernel, (triton.cdiv(k, 1024),), (acc, indices, values, n, k), {"TILE": 1024})
    launch(poison_kernel, (triton.cdiv(k, 1024),), (acc, indices, n, k), {"TILE": 1024})


def clear_at(x: Tensor, indices: Tensor) -> None:
    n, k = x.numel(), indices.numel()
    launch(clear_at_kernel, (triton.cdiv(k, 1024),), (x, indices, n, k), {"TILE": 1024})
