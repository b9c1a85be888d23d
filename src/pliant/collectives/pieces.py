"""Pieces of the parts of a vector that ranks own: each is coded and sent on its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec

__all__ = ["CodedPiece", "Parts", "cut_evenly", "payload_offsets", "piece_bytes", "pieces_of"]


@dataclass(frozen=True, kw_only=True)
class CodedPiece:
    """A part of one owner's range, coded on its own. Offsets count from the start of the vector."""

    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Elements of the piece."""
        return self.stop - self.start

    def of(self, x: Tensor) -> Tensor:
        """Return the piece of a vector: a view."""
        return x[self.start : self.stop]


_ALIGNED = 4
"""Blocks whose headers fill 16 bytes, or a multiple of them."""
_ROW_BYTES = 16
_DEVICE_PIECE_BYTES = 16 << 20
"""Least bytes of a piece on an accelerator."""

Parts = Sequence[Sequence[CodedPiece]]
"""Pieces of each rank's part of a vector, in the order of ranks; parts need not be equal, and may be empty."""


def cut_evenly(numel: int, count: int, granularity: int) -> list[CodedPiece]:
    """Cut numel elements into `count` parts, nearly equal, at multiples of granularity; some may be empty."""
    units = -(-numel // granularity)
    cuts = [min(numel, j * units // count * granularity) for j in range(count)] + [numel]
    return [CodedPiece(start=a, stop=b) for a, b in pairwise(cuts)]


def piece_bytes(chunk_bytes: int, device: torch.device) -> int:
    """Return the most bytes of a piece before coding, given those that are asked for.

    On an accelerator they are 16 MiB at least: it codes so many in some 10 us, and the launches and copies of smaller
    pieces take the host longer than their bytes take a network of some Gbit/s. There buckets overlap, so that pieces
    need not.
    """
    return max(chunk_bytes, _DEVICE_PIECE_BYTES) if is_accelerator(device) else chunk_bytes


def pieces_of(part: CodedPiece, chunk_bytes: int, granularity: int) -> list[CodedPiece]:
    """Cut a part into pieces of nearly equal size, at most chunk_bytes of float32 each, at multiples of granularity.

    Where so many fit into a piece, at multiples of four times that: then codes lie at multiples of 16 bytes behind the
    headers of their blocks, and kernels of accelerators read and write 16 bytes at once.
    """
    if part.numel == 0:
        return []
    count = -(-part.numel * 4 // chunk_bytes)
    granularity *= _ALIGNED if chunk_bytes >= 4 * _ALIGNED * granularity else 1
    return [
        CodedPiece(start=part.start + p.start, stop=part.start + p.stop)
        for p in cut_evenly(part.numel, count, granularity)
        if p.numel
    ]


def payload_offsets(codec: Codec, pieces: Sequence[CodedPiece]) -> list[int]:
    """Return where each piece's payload begins, at multiples of 16 bytes, and the end of the last."""
    return [0, *accumulate(-(-codec.nbytes(piece.numel) // _ROW_BYTES) * _ROW_BYTES for piece in pieces)]
