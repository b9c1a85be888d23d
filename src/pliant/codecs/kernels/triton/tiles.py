# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Tiles of whole blocks: where one program's elements lie, and how their codes are packed, read and written.

Shapes: a tile is (ROWS, WIDTH): ROWS blocks of BLOCK elements, and WIDTH the next power of two. Offsets are 32-bit and
count from the tile's first element, so that they never overflow; pointers are 64-bit.
"""

import triton
import triton.language as tl

__all__ = [
    "INFINITE_BITS",
    "as_float",
    "bits_of",
    "load_codes",
    "magnitude_of",
    "random_bits",
    "signed",
    "store_codes",
    "tile_of",
]

INFINITE_BITS = tl.constexpr(0x7F800000)  # |x| as an integer is at least this for Inf and NaN
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def bits_of(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def as_float(bits):
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def magnitude_of(x):
    """Return the bits of |x|, int32: in the order of |x|, with NaN above Inf above all numbers."""
    return bits_of(x) & _MAGNITUDE


@triton.jit
def signed(magnitude, negative):
    """Return a float of the given magnitude, and the sign that is set where negative, int32, is one."""
    return as_float(bits_of(magnitude) | (negative << 31))


@triton.jit
def random_bits(seed, i):
    """Return 32 random bits of element i, uint32; see random_bits in kernels.h."""
    h = i.to(tl.uint32) * 0x9E3779B1 + seed.to(tl.uint32)
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def tile_of(n, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Return the first element, the others' places behind it (ROWS, WIDTH), and which of them there are."""
    first = tl.program_id(0) * (ROWS * BLOCK)
    lane = tl.arange(0, WIDTH)[None, :]
    at = tl.arange(0, ROWS)[:, None] * BLOCK + lane
    inside = at < n - first
    if BLOCK != WIDTH:
        inside = inside & (lane < BLOCK)
    return first, at, inside


@triton.jit
def _bytes_of(left, PER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Return the places of a tile's bytes, each of PER codes, and which of them there are."""
    lane = tl.arange(0, WIDTH // PER)[None, :]
    at = tl.arange(0, ROWS)[:, None] * (BLOCK // PER) + lane
    inside = at < (left + PER - 1) // PER
    if BLOCK != WIDTH:
        inside = inside & (lane < BLOCK // PER)
    return at, inside


@triton.jit
def store_codes(
    codes, values, first, n, BITS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """Write codes, int32 (ROWS, WIDTH), zero outside of the vector, of BITS bits each, the first in the lowest."""
    PER: tl.constexpr = 8 // BITS if BITS < 8 else 1
    at, inside = _bytes_of(n - first, PER, BLOCK, WIDTH, ROWS)
    if PER > 1:
        shifts = (tl.arange(0, PER) * BITS)[None, None, :]
        values = tl.sum(tl.reshape(values, (ROWS, WIDTH // PER, PER)) << shifts, 2)
    tl.store(codes + first // PER + at, values.to(codes.dtype.element_ty), inside)


@triton.jit
def load_codes(codes, first, n, BITS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Read codes, int32 (ROWS, WIDTH)."""
    PER: tl.constexpr = 8 // BITS if BITS < 8 else 1
    at, inside = _bytes_of(n - first, PER, BLOCK, WIDTH, ROWS)
    values = tl.load(codes + first // PER + at, inside, 0).to(tl.int32)
    if PER > 1:
        shifts = (tl.arange(0, PER) * BITS)[None, None, :]
        values = tl.broadcast_to(values[:, :, None], (ROWS, WIDTH // PER, PER)) >> shifts
        values = tl.reshape(values & ((1 << BITS) - 1), (ROWS, WIDTH))
    return values
