"""Averages of elements of which each rank sends as many as it has marked."""

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm

__all__ = ["MarkedAverage"]


class MarkedAverage:
    """Mean of vectors of which each rank sends the elements that it has marked.

    Phases: all gather how many each rank has, in 8 bytes; then a place and a value of each, in 8 bytes, up to the most
    that a rank has; every rank adds them up in the order of ranks, so the results are equal to the bit. Bytes: (size -
    1) (8 + 8 most) in and out. Where one rank has marked more than a third, all send everything, by an all-reduce.
    The host waits for the numbers.

    Args:
        numel: Elements of each vector.
        comm: Ranks to average over.
        device: Device of the buffers.

    """

    def __init__(self, numel: int, comm: Comm, device: torch.device) -> None:
        self._comm, self._device = comm, device
        self._comm_of_counts = comm_for_rows(comm, 8, device)
        self._counts = torch.empty(comm.size, dtype=torch.int64, device=device)
        self._most = numel // 3

    def __call__(self, x: Tensor, marked: Tensor) -> bool:
        """Replace x, float32 (numel,), by the mean of what ranks have marked, bool (numel,), of theirs.

        Returns whether everything was sent.
        """
        size = self._comm.size
        self._comm_of_counts.all_gather(self._counts, marked.sum().view(1)).wait()
        most = int(self._counts.max())
        if most > self._most:
            self._comm.all_reduce(x.div_(size)).wait()
            return True
        rows = self._gather(x, marked, most)
        x.zero_()
        for places, values in rows.unbind():
            kernels_for(x).add_at(x, places, values.view(torch.float32))
        x.div_(size)
        return False

    def _gather(self, x: Tensor, marked: Tensor, most: int) -> Tensor:
        """Return places and the bits of values of all ranks, int32 (size, 2, most); places are filled up with -1."""
        places = marked.nonzero().view(-1)
        own = torch.full((2, most), -1, dtype=torch.int32, device=self._device)
        own[0, : len(places)] = places
        own[1, : len(places)] = x.index_select(0, places).view(torch.int32)
        rows = own.new_empty(self._comm.size, 2, most)
        if most:
            comm_for_rows(self._comm, own.nbytes, self._device).all_gather(rows.view(-1), own.view(-1)).wait()
        return rows
