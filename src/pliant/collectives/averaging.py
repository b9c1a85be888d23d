"""Averages by one all-reduce: sums in 16 bits, averages of short vectors, and of the elements that a codec keeps."""

from collections.abc import Generator

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import RandomK, all_finite, finite_flag
from pliant.collectives.rounds import RoundsComm
from pliant.comm.base import Comm
from pliant.layouts.rounds import average_form

__all__ = ["CastAllReduce", "SharedSparseAverage", "ShortVectorAverage"]


class ShortVectorAverage:
    """Mean of vectors in as few rounds as their length allows.

    Short: all gather all vectors, and each adds them up in the order of ranks: (size - 1) N bytes out and in. Longer:
    rank j owns the j-th of equal parts, sums it up and gives the sum to all: 2 (size - 1)/size N. Both take few rounds
    each way, one up to 26 ranks (`RoundsComm`). Long: an all-reduce, whose ring moves as much as the second in
    2 (size - 1) rounds. Each element is added up once for all or in one order: results are equal to the bit.

    Args:
        numel: Elements of each vector.
        comm: Ranks to average over; one that prefers collectives does all by an all-reduce.
        device: Device of the buffers.
        dtype: Of the vectors.
        in_parts: Whether to avoid the first way, in which more bytes are sent than in an all-reduce.

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
        by_ring = comm.prefers_collectives or comm.size == 1
        form = "ring" if by_ring else average_form(numel, comm.size, in_parts=in_parts)
        self._comm = comm if form == "ring" else RoundsComm(comm, device)
        width = {"gather": numel, "halves": -(-numel // comm.size), "ring": 0}[form]
        num_rows = 0 if form == "halves" and numel % comm.size == 0 else comm.size
        self._form, self._rows = form, torch.zeros(num_rows, width, dtype=dtype, device=device)
        self._part = torch.empty(width, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> None:
        """Replace x, (numel,), by the mean over ranks."""
        if not x.numel() or self._comm.size == 1:
            return
        x.div_(self._comm.size)
        if self._form == "ring":
            self._comm.all_reduce(x).wait()
        elif self._form == "gather":
            self._comm.all_gather(self._rows.view(-1), x).wait()
            torch.add(self._rows[0], self._rows[1], out=x)
            for other in self._rows[2:]:
                x.add_(other)
        else:
            padded = self._rows.view(-1) if len(self._rows) else x
            if padded is not x:
                padded[: x.numel()].copy_(x)
            self._comm.reduce_scatter(self._part, padded).wait()
            self._comm.all_gather(padded, self._part).wait()
            if padded is not x:
                x.copy_(padded[: x.numel()])


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
        for _ in self.stages(x):
            pass

    def stages(self, x: Tensor) -> Generator[None]:
        """Do the same in two stages: start the sum; wait for it."""
        self._wire.copy_(x)
        work = self._comm.all_reduce(self._wire)
        yield
        work.wait()
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
