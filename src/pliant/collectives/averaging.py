"""Averages by one all-reduce: sums in 16 bits, averages of short vectors, and of the elements that a codec keeps."""

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import RandomK, all_finite, finite_flag
from pliant.comm.base import Comm
from pliant.layouts.division import num_hops

__all__ = ["CastAllReduce", "SharedSparseAverage", "ShortVectorAverage"]


class ShortVectorAverage:
    """Mean of vectors in as few hops as their length allows.

    Short: every rank sends its own to all, and adds up the others': (size - 1) N bytes out and in, one hop. Longer:
    rank j owns the j-th part; all send it theirs, and it sends the mean to all: 2 (size - 1)/size N, two hops. Long: an
    all-reduce, whose ring moves as much in 2 (size - 1) hops. Sums are taken in the order of ranks: results are equal
    to the bit.

    Args:
        numel: Elements of each vector.
        comm: Ranks to average over.
        device: Device of the buffers.
        dtype: Of the vectors.
        in_parts: Whether to avoid one hop, in which more bytes are sent than in an all-reduce.

    """

    def __init__(
        self,
        numel: int,
        comm: Comm,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        in_parts: bool = False,
    ) -> None:
        self._comm, size = comm, comm.size
        hops = 0 if comm.prefers_collectives else num_hops(numel, size, in_parts=in_parts)
        self._direct = hops == 1
        part = -(-numel // size)
        self._parts = [(min(j * part, numel), min((j + 1) * part, numel)) for j in range(size)]
        first, last = (0, numel) if self._direct else self._parts[comm.rank]
        rows = size if size > 1 and hops else 0
        self._all = torch.empty(rows, last - first, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> None:
        """Replace x, (numel,), by the mean over ranks."""
        if not x.numel() or self._comm.size == 1:
            return
        x.div_(self._comm.size)
        if not len(self._all):
            self._comm.all_reduce(x).wait()
            return
        me, peers = self._comm.rank, [r for r in range(self._comm.size) if r != self._comm.rank]
        parts = [x if self._direct else x[slice(*part)] for part in self._parts]
        self._all[me].copy_(parts[me])
        sends = [(r, self._all[me] if self._direct else parts[r]) for r in peers]
        self._comm.exchange(sends, [(r, self._all[r]) for r in peers]).wait()
        torch.add(self._all[0], self._all[1], out=parts[me])
        for other in self._all[2:]:
            parts[me].add_(other)
        if not self._direct:
            self._comm.exchange([(r, parts[me]) for r in peers], [(r, parts[r]) for r in peers]).wait()


class CastAllReduce:
    """Sum in a 16-bit format: cast, sum on the wire in that format, cast back.

    Args:
        dtype: bfloat16 or float16.
        numel: Elements of each vector.
        comm: Ranks to sum over.
        device: Device of the buffer.

    """

    def __init__(self, dtype: torch.dtype, numel: int, comm: Comm, device: torch.device) -> None:
        self._wire = torch.empty(numel, dtype=dtype, device=device)
        self._comm = comm

    def __call__(self, x: Tensor) -> None:
        """Replace x, float32 (numel,), by the sum over ranks."""
        self._wire.copy_(x)
        self._comm.all_reduce(self._wire).wait()
        x.copy_(self._wire)


class SharedSparseAverage:
    """The mean of the elements that RandomK keeps, with error feedback for the others.

    v <- v + g; average v at the shared places; there v <- 0. Bytes: an all-reduce of k float32.
    """

    def __init__(self, codec: RandomK, numel: int, comm: Comm, device: torch.device) -> None:
        self._codec = codec
        self._payload = torch.empty(codec.nbytes(numel), dtype=torch.uint8, device=device)
        self._comm = comm

    def __call__(self, x: Tensor, seed: int, residual: Tensor) -> None:
        """Replace x, float32 (numel,), by the sparse mean; residual, (numel,), keeps what was not sent.

        The seed must be the same on all ranks. An x that is not finite poisons the mean and leaves residual alone.
        """
        if is_accelerator(x.device):
            self._on_device(x, seed, residual)
            return
        finite = all_finite(x)
        if finite:
            residual.add_(x)
        self._average(residual if finite else x, seed)
        self._codec.decode(self._payload, x)
        if finite:
            self._codec.clear_sent(self._payload, residual)

    def _on_device(self, x: Tensor, seed: int, residual: Tensor) -> None:
        """Do the same without waiting to know whether x is finite."""
        finite, owed = finite_flag(x), residual + x
        self._average(owed, seed)
        self._codec.decode(self._payload, x)
        self._codec.clear_sent(self._payload, owed)
        residual.copy_(torch.where(finite, owed, residual))

    def _average(self, x: Tensor, seed: int) -> None:
        self._codec.encode(x, self._payload, seed)
        summands = self._codec.summands(self._payload)
        summands.div_(self._comm.size)
        self._comm.all_reduce(summands).wait()
