# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""sign: the mean of |x| for each block, then one bit for each element.

The mean is the C kernel's to the bit, and so has its order of adding: element i into column i % 16, row by row, then
halves onto halves. A tile cannot be summed so. Hence the sums come first, from rows of columns of several blocks at
once, and each element is read a second time, from the cache, for its bit and its residual.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.blocks import check_rows, kept
from pliant.codecs.kernels.triton.launch import Tiles, launch
from pliant.codecs.kernels.triton.tiles import (
    INFINITE_BITS,
    bits_of,
    load_codes,
    magnitude_of,
    signed,
    store_codes,
    tile_of,
)

__all__ = ["decode_kernel", "encode_kernel", "sign_decode", "sign_encode", "sign_mean"]

_LANES = tl.constexpr(16)


@triton.jit
def _value(x, owed, scales, codes, stride, size, at, inside, PAYLOADS: tl.constexpr, BLOCK: tl.constexpr):
    """Return (x + `owed` + sum of the decoded payloads) / size at places of the vector; without payloads x + `owed`."""
    v = tl.load(x + at, inside, 0.0)
    if owed is not None:
        v = v + tl.load(owed + at, inside, 0.0)
    if PAYLOADS > 0:
        for _ in range(PAYLOADS):
            scale = tl.load(scales + at // BLOCK, inside, 0.0)
            byte = tl.load(codes + at // 8, inside, 0).to(tl.int32)
            v += signed(scale, byte >> (at % 8) & 1)
            scales += stride * 4
            codes += stride * 16
        v = tl.div_rn(v, tl.zeros_like(v) + size)
    return v


@triton.jit
def _mean_magnitude(
    x, owed, scales, codes, stride, size, first, n, PAYLOADS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Return the mean of |v| of each block, float32 (ROWS,)."""
    row = tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, _LANES)[None, :]
    lengths = tl.maximum(tl.minimum(n - first - row * BLOCK, BLOCK), 1).to(tl.float32)
    lanes = tl.zeros((ROWS, _LANES), tl.float32)
    for k in range(0, BLOCK, _LANES):
        inside = at + k < n - first
        lanes += tl.abs(_value(x, owed, scales, codes, stride, size, first + (at + k), inside, PAYLOADS, BLOCK))
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, _LANES // 2)), 1)  # a sum of two has one order
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, _LANES // 4)), 1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, _LANES // 8)), 1)
    mean = tl.div_rn(tl.sum(lanes, 1), lengths)
    if tl.max(magnitude_of(mean), 0) >= INFINITE_BITS:  # too large for a float, or not finite at all
        exact = tl.zeros((ROWS, _LANES), tl.float64)
        for k in range(0, BLOCK, _LANES):
            inside = at + k < n - first
            v = _value(x, owed, scales, codes, stride, size, first + (at + k), inside, PAYLOADS, BLOCK)
            exact += tl.abs(v).to(tl.float64)
        inverse = tl.div_rn(tl.zeros_like(lengths) + 1.0, lengths).to(tl.float64)
        for _ in range(2):  # Newton's steps: a division of float64 would need a stack
            inverse = inverse * (2.0 - lengths.to(tl.float64) * inverse)
        wide = (tl.sum(exact, 1) * inverse).to(tl.float32)
        mean = tl.where(magnitude_of(mean) < INFINITE_BITS, mean, wide)
    return mean


@triton.jit
def encode_kernel(
    x, owed, gate, scales, codes, header, bits, n, stride, size, factor,
    PAYLOADS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Encode v and set `owed` to factor times what is not carried; with payloads, set x to what is carried."""
    first = tl.program_id(0) * (ROWS * BLOCK)
    mean = _mean_magnitude(x, owed, scales, codes, stride, size, first, n, PAYLOADS, BLOCK, ROWS)
    row = tl.arange(0, ROWS)
    tl.store(header + first // BLOCK + row, mean, row * BLOCK < n - first)
    for start in range(0, BLOCK, COLUMNS):
        at = row[:, None] * BLOCK + (start + tl.arange(0, COLUMNS)[None, :])
        inside = at < n - first
        v = _value(x, owed, scales, codes, stride, size, first + at, inside, PAYLOADS, BLOCK)
        negative = (bits_of(v) < 0).to(tl.int32)
        store_codes(bits, tl.where(inside, negative, 0), first + start, n, 1, BLOCK, COLUMNS, ROWS)
        decoded = signed(tl.broadcast_to(mean[:, None], (ROWS, COLUMNS)), negative)
        if owed is not None:
            old = tl.load(owed + first + at, inside, 0.0)
            tl.store(owed + first + at, kept(decoded, (v - decoded) * factor, old, gate), inside)
        if PAYLOADS > 0:
            tl.store(x + first + at, decoded, inside)


@triton.jit
def decode_kernel(
    header, bits, acc, n, ADD: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    first, at, inside = tile_of(n, BLOCK, WIDTH, ROWS)
    row = tl.arange(0, ROWS)
    scale = tl.load(header + first // BLOCK + row, row * BLOCK < n - first, 0.0)
    negative = load_codes(bits, first, n, 1, BLOCK, WIDTH, ROWS)
    v = signed(tl.broadcast_to(scale[:, None], (ROWS, WIDTH)), negative)
    if ADD:
        v = tl.load(acc + first + at, inside, 0.0) + v
    tl.store(acc + first + at, v, inside)


def _decoder(block: int) -> tuple[Tiles, dict[str, int]]:
    tiles = Tiles.of(block)
    return tiles, {"BLOCK": block, "WIDTH": tiles.width, "ROWS": tiles.rows, "num_warps": tiles.num_warps}


def _encoder(block: int) -> tuple[Tiles, dict[str, int]]:
    """Return the tiles of one warp that sums two rows of columns at once, if a block is long, or more."""
    rows = triton.next_power_of_2(max(2, 1024 // block))
    columns = min(512 // min(rows, 16), block & -block)  # a power of two that divides the block
    return Tiles(block, block, rows), {"BLOCK": block, "COLUMNS": columns, "ROWS": rows, "num_warps": 1}


def _parts(payload: Tensor, numel: int, block: int) -> tuple[Tensor, Tensor]:
    cut = 4 * -(-numel // block)
    return payload[:cut].view(torch.float32), payload[cut:]


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, *, gate: Tensor | None = None) -> None:
    (tiles, constants), parts = _encoder(block), _parts(payload, x.numel(), block)
    arguments = x, residual, gate, None, None, *parts, x.numel(), 0, 1.0, 1.0
    launch(encode_kernel, tiles.grid(x.numel()), arguments, {"PAYLOADS": 0, **constants})


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    (tiles, constants), parts = _decoder(block), _parts(payload, acc.numel(), block)
    launch(decode_kernel, tiles.grid(acc.numel()), (*parts, acc, acc.numel()), {"ADD": add, **constants})


def sign_mean(
    x: Tensor,
    owed: Tensor | None,
    payloads: Tensor,
    payload: Tensor,
    block: int,
    *,
    feedback: bool,
    gate: Tensor | None = None,
) -> None:
    """Do the step of an owner in one launch; see `Format.mean`."""
    check_rows(payloads)
    rows, row = payloads.shape
    (tiles, constants), numel = _encoder(block), x.numel()
    parts = *_parts(payloads.view(-1), numel, block), *_parts(payload, numel, block)
    numbers = numel, row // 16, float(rows + 1), (rows + 1.0) * feedback
    launch(encode_kernel, tiles.grid(numel), (x, owed, gate, *parts, *numbers), {"PAYLOADS": rows, **constants})
