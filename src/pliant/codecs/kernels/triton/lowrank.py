# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The passes of PowerSGD that torch does in many launches: orthogonal factors of all matrices, and the split."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.launch import launch

__all__ = ["low_rank_split", "orthogonalize", "orthogonalize_kernel", "split_kernel"]

_CHUNK = 2048
_TILE = 1024


@triton.jit
def _dot(a, b, n, CHUNK: tl.constexpr):
    """Return <a, b> of n numbers: CHUNK partial sums, then their sum."""
    lanes = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        lanes += tl.load(a + at, at < n, 0.0) * tl.load(b + at, at < n, 0.0)
    return tl.sum(lanes, 0)


@triton.jit
def _add(a, b, factor, n, ADD: tl.constexpr, CHUNK: tl.constexpr):
    """Replace a by a + factor b, or by factor b; other threads see it afterwards."""
    tl.debug_barrier()
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        v = factor * tl.load(b + at, at < n, 0.0)
        if ADD:
            v = tl.load(a + at, at < n, 0.0) + v
        tl.store(a + at, v, at < n)
    tl.debug_barrier()


@triton.jit
def orthogonalize_kernel(
    base, table, RANK: tl.constexpr, PADDED: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr
):
    """Orthonormalize the rows of a matrix, (RANK, n), in place, by modified Gram-Schmidt; one matrix a program."""
    place = table + 2 * tl.program_id(0)
    offset, n = tl.load(place), tl.load(place + 1).to(tl.int32)
    if ALIGNED:
        offset, n = tl.multiple_of(offset, 4), tl.multiple_of(n, 4)
    p = base + offset
    rank = tl.arange(0, PADDED)
    before = tl.zeros((PADDED,), tl.float32)
    for j in range(RANK):
        before = tl.where(rank == j, tl.sqrt_rn(_dot(p + j * n, p + j * n, n, CHUNK)), before)
    for j in range(RANK):
        row = p + j * n
        norm = tl.sqrt_rn(_dot(row, row, n, CHUNK))
        rest = norm > 1e-5 * tl.sum(tl.where(rank == j, before, 0.0), 0)
        # What depends on the rows before is only rounding. NaN is no such rest, and stays.
        _add(row, row, tl.where(rest | (norm != norm), tl.div_rn(1.0, norm), 0.0), n, False, CHUNK)
        for k in range(j + 1, RANK):
            _add(p + k * n, row, -_dot(row, p + k * n, n, CHUNK), n, True, CHUNK)


@triton.jit
def split_kernel(x, residual, p, q, n, m, RANK: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = j < m
    at = i.to(tl.int64) * m + j
    t = tl.load(p + i) * tl.load(q + j, inside, 0.0)
    for k in range(1, RANK):
        t += tl.load(p + k * n + i) * tl.load(q + k * m + j, inside, 0.0)
    tl.store(residual + at, tl.load(x + at, inside, 0.0) - t, inside)
    tl.store(x + at, t, inside)


@lru_cache(maxsize=4096)  # of more buckets than a model has
def _table(places: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """Return (offset from the first, n) of matrices, int64 (num, 2): copied to the device once for each layout."""
    first = places[0][0]
    return torch.tensor([((place - first) // 4, n) for place, n in places], dtype=torch.int64, device=device)


def orthogonalize(ps: Sequence[Tensor]) -> None:
    """Orthonormalize the rows of each p, float32 (r, n), contiguous, in place: one launch for all of one rank r."""
    for rank in sorted({len(p) for p in ps}):
        group = [p for p in ps if len(p) == rank and p.numel()]
        if not group:
            continue
        places = tuple((p.data_ptr(), p.shape[1]) for p in group)
        constants = {
            "RANK": rank,
            "PADDED": triton.next_power_of_2(rank),
            "ALIGNED": all(place % 16 == 0 and n % 4 == 0 for place, n in places),
            "CHUNK": min(_CHUNK, max(128, triton.next_power_of_2(max(n for _, n in places)))),
        }
        launch(orthogonalize_kernel, (len(group),), (group[0], _table(places, group[0].device)), constants)


def low_rank_split(x: Tensor, residual: Tensor, p: Tensor, q: Tensor) -> None:
    """Set residual to x - p^T q and x to p^T q, each product rounded and then added, as in lowrank.c."""
    (n, m), tile = x.shape, min(_TILE, max(128, triton.next_power_of_2(x.shape[1])))
    launch(split_kernel, (n, triton.cdiv(m, tile)), (x, residual, p, q, n, m), {"RANK": len(q), "TILE": tile})
