"""Averages by one all-reduce: sums in 16 bits, averages of short vectors, and of the elements that a codec keeps."""

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import RandomK, all_finite, finite_flag
from pliant.collectives.pairwise import rotated_peers
from pliant.collectives.rounds import RoundsComm
from pliant.comm.base import Comm, Work
from pliant.comm.standing import StandingReceives
from pliant.comm.works import waited_for
from pliant.layouts.rounds import average_form, rounds_among

__all__ = ["CastAllReduce", "SharedSparseAverage", "ShortVectorAverage"]


class ShortVectorAverage:
    """Mean of vectors in as few rounds as their length allows.

    Short: all gather all vectors, and each adds them up in the order of ranks: (size - 1) N bytes out and in. Longer:
    rank j owns the j-th of equal parts, sums it up and gives the sum to all: 2 (size - 1)/size N. Both take few rounds
    each way: one up to 26 ranks, several by way of other ranks beyond (`RoundsComm`). Long: an all-reduce, whose ring
    moves as much as the second in 2 (size - 1) rounds. Each element is added up once for all or in one order: results
    are equal to the bit.

    Args:
        numel: Elements of each vector.
        comm: Ranks to average over; one that prefers collectives does all by an all-reduce.
        device: Device of the buffers.
        dtype: Of the vectors.
        in_parts: Whether to avoid the first way where more bytes are sent in it than in an all-reduce.

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
        self._form, self._at_once = form, len(rounds_among(comm.size)) == 1
        self._comm = comm if form == "ring" or self._at_once else RoundsComm(comm, device)
        width = {"gather": numel, "halves": -(-numel // comm.size), "ring": 0}[form]
        self._rows = torch.empty(comm.size, width, dtype=dtype, device=device)
        padded = comm.size * width if form == "halves" and numel % comm.size else 0
        self._padded = torch.zeros(padded, dtype=dtype, device=device)
        self._came = [self._rows, *([torch.empty_like(self._rows)] if form == "halves" else [])]
        halves = self._came if self._at_once and form != "ring" else []
        peers = rotated_peers(comm)
        self._receives = [StandingReceives(comm, [[(p, rows[p]) for p in peers]]) for rows in halves]

    def __call__(self, x: Tensor) -> None:
        """Replace x, (numel,), by the mean over ranks."""
        x.div_(self._comm.size)
        for _ in self.add_up(x):
            pass

    def add_up(self, x: Tensor) -> Generator[None]:
        """Replace x, (numel,), by the sum over ranks, in three stages at most, each with messages in their own order.

        All is one stage where rows go by way of other ranks, whose messages have one order.
        """
        if not x.numel() or self._comm.size == 1:
            return
        if self._form == "ring":
            yield from waited_for(self._comm.all_reduce(x))
        else:
            yield from self._gather(x) if self._form == "gather" else self._halves(x)

    def _gather(self, x: Tensor) -> Generator[None]:
        """Send x to all, and add up."""
        if self._at_once:
            yield from self._swap([x] * self._comm.size, 0)
        else:
            self._comm.all_gather(self._rows.view(-1), x).wait()
        self._add_rows(x)
        if self._at_once:
            self._receives[0].stand()

    def _halves(self, x: Tensor) -> Generator[None]:
        """Send parts to their owners, who add up; and the sums to all."""
        padded = self._padded if len(self._padded) else x
        if padded is not x:
            padded[: len(x)].copy_(x)
        if self._at_once:
            parts = padded.view(self._comm.size, -1)
            own = parts[self._comm.rank]
            yield from self._swap(parts, 0)
            self._add_rows(own)
            self._receives[0].stand()
            yield from self._swap([own] * self._comm.size, 1)
            for p in rotated_peers(self._comm):
                parts[p].copy_(self._came[1][p])
            self._receives[1].stand()
        else:
            self._comm.reduce_scatter(self._rows[0], padded).wait()
            self._comm.all_gather(padded, self._rows[0]).wait()
        if padded is not x:
            x.copy_(padded[: len(x)])

    def _swap(self, rows: Sequence[Tensor] | Tensor, which: int) -> Generator[None]:
        """Send row p to rank p, and receive the row of each other rank, in the first or the second half."""
        sends = [(p, rows[p]) for p in rotated_peers(self._comm)]
        yield from waited_for(self._receives[which].exchange(sends))

    def _add_rows(self, own: Tensor) -> None:
        """Add the rows that have come to this rank's own, in the order of ranks."""
        self._rows[self._comm.rank].copy_(own)
        torch.add(self._rows[0], self._rows[1], out=own)
        for other in self._rows[2:]:
            own.add_(other)


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
        yield from waited_for(self._comm.all_reduce(self._wire))
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
        for _ in self.stages(x, seed, residual):
            pass

    def stages(self, x: Tensor, seed: int, residual: Tensor) -> Generator[None]:
        """Do the same in two stages: start the sum; wait for it. On an accelerator all is one."""
        if is_accelerator(x.device):
            self._on_device(x, seed, residual)
            return
        finite = all_finite(x)
        if finite:
            residual.add_(x)
        yield from waited_for(self._start(residual if finite else x, seed))
        self._codec.decode(self._payload, x)
        if finite:
            self._codec.clear_sent(self._payload, residual)

    def _on_device(self, x: Tensor, seed: int, residual: Tensor) -> None:
        """Do the same without waiting to know whether x is finite."""
        finite, owed = finite_flag(x), residual + x
        self._start(owed, seed).wait()
        self._codec.decode(self._payload, x)
        self._codec.clear_sent(self._payload, owed)
        residual.copy_(torch.where(finite, owed, residual))

    def _start(self, x: Tensor, seed: int) -> Work:
        self._codec.encode(x, self._payload, seed)
        summands = self._codec.summands(self._payload)
        return self._comm.all_reduce(summands.div_(self._comm.size))
