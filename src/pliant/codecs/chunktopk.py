"""Codec of the largest elements of each chunk, in few bits each."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pliant.codecs.base import Codec
from pliant.codecs.kernels import kernels_for
from pliant.codecs.registry import codec_from
from pliant.codecs.templates import SparsifyingCodec
from pliant.spec import CodecSpec
from pliant.spec.codecs import facts_of

__all__ = ["ChunkTopK"]


@dataclass(frozen=True, kw_only=True)
class ChunkTopK(SparsifyingCodec):
    """Cut x into flat chunks of `block`, and keep the k = ceil(ratio block) elements of the largest |x| of each.

    As in SparseLoCo (Sarfi et al., arXiv:2508.15706), whose chunks are tiles of 64 x 64 of a matrix: a place within a
    chunk takes 12 bits in the place of 32, and no layer is left without a share. Ties go to the lower place. NaN and
    Inf are never left out. Values travel in `bits` each: 2 (`Sigma2`), 8 (`MinMax8`) or 16 (bfloat16), and error
    feedback keeps what rounding them loses as well. With C for the values in full, ||x - C(x)||^2 <= (1 - k/block)
    ||x||^2.

    Payload: all chosen values in the codec of the values; then their places within the chunks, each in 8, 12 or 16
    bits for chunks of up to 256, 4096 or 65536 elements, ascending in each chunk; then zeros up to a multiple of 4
    bytes. The last chunk may be shorter, and gives its share.
    """

    name: ClassVar[str] = "chunktopk"
    ratio: float = 1 / 64
    block: int = 4096
    bits: int = 2

    @property
    def granularity(self) -> int:
        return self.block

    @property
    def kept(self) -> int:
        """Return k, the number of elements kept of each whole chunk."""
        return math.ceil(self.ratio * self.block)

    @property
    def value_codec(self) -> Codec:
        """Return the codec of the values."""
        return codec_from(CodecSpec(name=facts_of(self.name).value_codecs[self.bits]))

    def count(self, numel: int) -> int:
        """Return the number of elements kept of all chunks."""
        return numel // self.block * self.kept + math.ceil(self.ratio * (numel % self.block))

    def nbytes(self, numel: int) -> int:
        return -(-self._used(self.count(numel)) // 4) * 4

    def kernel_encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        places = torch.empty(self.count(x.numel()), dtype=torch.int32, device=x.device)
        values, codec = torch.empty(len(places), dtype=torch.float32, device=x.device), self.value_codec
        kernels_for(x).chunks_encode(x, places, values, self.block, self.kept)
        cut, end = codec.nbytes(len(places)), self._used(len(places))
        codec.encode(values, payload[:cut], seed)
        payload[cut:end] = _pack(places.sub_(self._starts(places)), self._place_bits)
        payload[end:] = 0

    def kernel_add(self, payload: Tensor, acc: Tensor) -> None:
        kernels_for(acc).add_at(acc, *self._chosen(payload, acc.numel()))

    def kernel_clear(self, payload: Tensor, x: Tensor) -> None:
        """Subtract what is sent; where it is poisoned, so that the step is lost, x stays, and what overflowed is 0."""
        places, values = self._chosen(payload, x.numel())
        places = places.long()
        before = x.index_select(0, places)
        left = before - values
        x.index_copy_(0, places, torch.where(left.isfinite(), left, torch.where(before.isfinite(), before, 0.0)))

    def indices(self, payload: Tensor, numel: int) -> Tensor:
        """Return the chosen places, int32 (count,), which `numel` elements have."""
        count, codec = self.count(numel), self.value_codec
        places = _unpack(payload[codec.nbytes(count) : self._used(count)], count, self._place_bits)
        return places.add_(self._starts(places))

    def _chosen(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Return the places and the values that a payload carries."""
        count, codec = self.count(numel), self.value_codec
        values = torch.empty(count, dtype=torch.float32, device=payload.device)
        codec.decode(payload[: codec.nbytes(count)], values)
        return self.indices(payload, numel), values

    def _used(self, count: int) -> int:
        return self.value_codec.nbytes(count) + -(-count * self._place_bits // 8)

    @property
    def _place_bits(self) -> int:
        return next(bits for bits in (8, 12, 16) if self.block <= 1 << bits)

    def _starts(self, places: Tensor) -> Tensor:
        """Return where the chunk of each chosen element begins, int32."""
        which = torch.arange(len(places), dtype=torch.int32, device=places.device)
        return which.div_(self.kept, rounding_mode="floor").mul_(self.block)


def _pack(places: Tensor, bits: int) -> Tensor:
    """Return places, int32 (count,), below 2^bits in bytes, the first in the lowest bits."""
    if bits == 8:
        return places.to(torch.uint8)
    if bits == 16:
        return torch.stack([places & 255, places >> 8], 1).to(torch.uint8).view(-1)
    first, second = torch.nn.functional.pad(places, (0, len(places) % 2)).view(-1, 2).unbind(1)
    packed = torch.stack([first & 255, first >> 8 | (second & 15) << 4, second >> 4], 1)
    return packed.to(torch.uint8).view(-1)[: -(-len(places) * 12 // 8)]


def _unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """Return `count` places, int32."""
    wide = packed.int()
    if bits == 8:
        return wide
    if bits == 16:
        first, second = wide.view(-1, 2).unbind(1)
        return first | second << 8
    first, middle, last = torch.nn.functional.pad(wide, (0, -len(wide) % 3)).view(-1, 3).unbind(1)
    return torch.stack([first | (middle & 15) << 8, middle >> 4 | last << 4], 1).view(-1)[:count]
