# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The three kernels of all codecs with a code for each element: encode, decode, and the step of an owner.

A format is a pair of functions: `quantize(v, inside, i, seed, BITS)` gives codes, three numbers of the header for each
block, and the decoded values; `dequantize(codes, low, step, offset, BITS)` gives those values. HEADER says how many of
the numbers a payload carries: 0, 1 (the step), 2 (low and step) or 3. Every element is read once, and what becomes of
it is written once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pliant.codecs.kernels.triton.launch import Tiles, launch, signed_seed
from pliant.codecs.kernels.triton.tiles import INFINITE_BITS, load_codes, magnitude_of, store_codes, tile_of

__all__ = ["Format", "check_rows", "decode_kernel", "encode_kernel", "kept", "mean_kernel"]


@triton.jit
def _store_header(header, low, step, offset, first, n, HEADER: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = header + HEADER * (first // BLOCK + row)
    real = row * BLOCK < n - first
    if HEADER == 1:
        tl.store(at, step, real)
    if HEADER >= 2:
        tl.store(at, low, real)
        tl.store(at + 1, step, real)
    if HEADER == 3:
        tl.store(at + 2, offset, real)


@triton.jit
def _load_header(header, first, n, HEADER: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = header + HEADER * (first // BLOCK + row)
    real = row * BLOCK < n - first
    low, step, offset = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if HEADER == 1:
        step = tl.load(at, real, 0.0)
    if HEADER >= 2:
        low = tl.load(at, real, 0.0)
        step = tl.load(at + 1, real, 0.0)
    if HEADER == 3:
        offset = tl.load(at + 2, real, 0.0)
    return low[:, None], step[:, None], offset[:, None]


@triton.jit
def kept(decoded, new, old, gate):
    """Return the new residual, or the old one where the payload is poisoned; everywhere if the gate is not finite."""
    carried = magnitude_of(decoded) < INFINITE_BITS
    if gate is not None:
        carried = carried & (magnitude_of(tl.load(gate)) < INFINITE_BITS)
    return tl.where(carried, new, old)


@triton.jit(do_not_specialize=["seed"])
def encode_kernel(
    x, residual, gate, header, codes, n, seed,
    QUANTIZE: tl.constexpr, BITS: tl.constexpr, HEADER: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    first, at, inside = tile_of(n, BLOCK, WIDTH, ROWS)
    v = tl.load(x + first + at, inside, 0.0)
    if residual is not None:
        owed = tl.load(residual + first + at, inside, 0.0)
        v = v + owed
    values, low, step, offset, decoded = QUANTIZE(v, inside, first + at, seed, BITS)
    _store_header(header, low, step, offset, first, n, HEADER, BLOCK, ROWS)
    store_codes(codes, tl.where(inside, values, 0), first, n, BITS, BLOCK, WIDTH, ROWS)
    if residual is not None:
        tl.store(residual + first + at, kept(decoded, v - decoded, owed, gate), inside)


@triton.jit
def decode_kernel(
    header, codes, acc, n,
    DEQUANTIZE: tl.constexpr, ADD: tl.constexpr, BITS: tl.constexpr, HEADER: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    first, at, inside = tile_of(n, BLOCK, WIDTH, ROWS)
    low, step, offset = _load_header(header, first, n, HEADER, BLOCK, ROWS)
    v = DEQUANTIZE(load_codes(codes, first, n, BITS, BLOCK, WIDTH, ROWS), low, step, offset, BITS)
    if ADD:
        v = tl.load(acc + first + at, inside, 0.0) + v
    tl.store(acc + first + at, v, inside)


@triton.jit(do_not_specialize=["seed"])
def mean_kernel(
    x, owed, headers, payloads, header, codes, n, stride, size, seed,
    QUANTIZE: tl.constexpr, DEQUANTIZE: tl.constexpr, PAYLOADS: tl.constexpr, FEEDBACK: tl.constexpr,
    BITS: tl.constexpr, HEADER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    first, at, inside = tile_of(n, BLOCK, WIDTH, ROWS)
    v = tl.load(x + first + at, inside, 0.0)
    if owed is not None:
        old = tl.load(owed + first + at, inside, 0.0)
        v = v + old
    for _ in range(PAYLOADS):
        low, step, offset = _load_header(headers, first, n, HEADER, BLOCK, ROWS)
        v += DEQUANTIZE(load_codes(payloads, first, n, BITS, BLOCK, WIDTH, ROWS), low, step, offset, BITS)
        headers += stride * 4
        payloads += stride * (8 if BITS == 16 else 16)
    v = tl.where(inside, tl.div_rn(v, tl.zeros_like(v) + size), 0.0)  # codes of 0 outside are no zeros
    values, low, step, offset, decoded = QUANTIZE(v, inside, first + at, seed, BITS)
    _store_header(header, low, step, offset, first, n, HEADER, BLOCK, ROWS)
    store_codes(codes, tl.where(inside, values, 0), first, n, BITS, BLOCK, WIDTH, ROWS)
    tl.store(x + first + at, decoded, inside)
    if owed is not None:
        new = tl.zeros_like(v)
        if FEEDBACK:
            new = (v - decoded) * size
        tl.store(owed + first + at, kept(decoded, new, old, None), inside)


def check_rows(payloads: Tensor) -> None:
    """Raise ValueError unless payloads, (num, row), are rows one behind the other that begin at multiples of 16."""
    if not payloads.is_contiguous() or (payloads.shape[1] % 16 and len(payloads) > 1):
        raise ValueError(
            f"payloads of {payloads.shape[1]} bytes a row lie askew; keep them in one contiguous tensor whose rows are "
            "a multiple of 16 bytes."
        )


@dataclass(frozen=True)
class Format:
    """One payload format: its two functions, its bits for each code, and its numbers for each block's header."""

    quantize: Callable[..., Any]
    dequantize: Callable[..., Any]
    bits: int
    header: int = 1

    def _parts(self, payload: Tensor, numel: int, block: int) -> tuple[Tensor, Tensor]:
        """Return the header, float32, and the codes, uint8 or int16, of a payload or of rows of them."""
        cut = 4 * self.header * -(-numel // block)
        codes = payload[..., cut:]
        return payload[..., :cut].view(torch.float32), codes.view(torch.int16) if self.bits == 16 else codes

    def _constants(self, tiles: Tiles) -> dict[str, int]:
        sizes = {"BLOCK": tiles.block, "WIDTH": tiles.width, "ROWS": tiles.rows, "num_warps": tiles.num_warps}
        return {"BITS": self.bits, "HEADER": self.header, **sizes}

    def encode(
        self, x: Tensor, residual: Tensor | None, payload: Tensor, block: int, seed: int = 0, gate: Tensor | None = None
    ) -> None:
        """Encode x, or x + residual, which then becomes what the payload does not carry; poisoned blocks keep theirs.

        Where the gate, float32 (), is not finite, as the largest |x| is not if x is not, all of the residual stays.
        """
        tiles, parts = Tiles.of(block), self._parts(payload, x.numel(), block)
        arguments = x, residual, gate, *parts, x.numel(), signed_seed(seed)
        launch(encode_kernel, tiles.grid(x.numel()), arguments, {"QUANTIZE": self.quantize, **self._constants(tiles)})

    def decode(self, payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
        tiles, parts = Tiles.of(block), self._parts(payload, acc.numel(), block)
        constants = {"DEQUANTIZE": self.dequantize, "ADD": add, **self._constants(tiles)}
        launch(decode_kernel, tiles.grid(acc.numel()), (*parts, acc, acc.numel()), constants)

    def mean(
        self,
        x: Tensor,
        owed: Tensor | None,
        payloads: Tensor,
        payload: Tensor,
        block: int,
        seed: int = 0,
        *,
        feedback: bool,
    ) -> None:
        """Do the step of an owner in one launch: add up, divide, encode the mean, and decode it.

        With s ranks: v = (x + `owed` + sum of the decoded payloads, in their order) / s; payload <- C(v); x <- what
        the payload says; `owed` <- s (v - x) with feedback, else 0. Poisoned blocks keep their residual.

        Args:
            x: This rank's own part, float32 (numel,), replaced by the decoded mean.
            owed: Residual of this rank's part of the sum, float32 (numel,), or None.
            payloads: What the s - 1 others sent, uint8 (s - 1, row), each row begun by a payload; row % 16 == 0.
            payload: uint8 (nbytes,), overwritten.
            block: Elements of a block.
            seed: For random rounding.
            feedback: Whether the error of the mean is kept.

        """
        check_rows(payloads)
        rows, row = payloads.shape
        tiles, numel = Tiles.of(block), x.numel()
        theirs = self._parts(payloads.view(-1), numel, block)
        parts = self._parts(payload, numel, block)
        numbers = numel, row // 16, float(rows + 1), signed_seed(seed)
        constants = {"QUANTIZE": self.quantize, "DEQUANTIZE": self.dequantize, "FEEDBACK": feedback, "PAYLOADS": rows}
        arguments = x, owed, *theirs, *parts, *numbers
        launch(mean_kernel, tiles.grid(numel), arguments, constants | self._constants(tiles))
