"""Averages of elements that each rank selects, gathered and merged."""

from collections.abc import Generator

import torch
from torch import Tensor

from pliant.codecs import BlockTopK, ChunkTopK, Dct, TopK
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm
from pliant.comm.works import waited_for

__all__ = ["SparseAverage"]


class SparseAverage:
    """Mean of vectors of which each rank sends the elements that its codec selects.

    Phases: encode; all-gather of the payloads; every rank adds all of them up in the order of ranks, so the results are
    equal to the bit. Bytes: (size - 1) payloads in and out, in few rounds where they are short (`comm_for_rows`).

    Args:
        codec: Sparsifier.
        numel: Elements of each vector.
        comm: Ranks to average over.
        device: Device of the buffers.

    """

    def __init__(self, codec: TopK | BlockTopK | ChunkTopK | Dct, numel: int, comm: Comm, device: torch.device) -> None:
        self._codec = codec
        self._comm = comm_for_rows(comm, codec.nbytes(numel), device)
        self._own = torch.empty(codec.nbytes(numel), dtype=torch.uint8, device=device)
        self._all = torch.empty(comm.size * self._own.numel(), dtype=torch.uint8, device=device)

    def __call__(self, out: Tensor, x: Tensor, seed: int) -> None:
        """Overwrite out by the mean of what was chosen of each rank's x, both float32 (numel,)."""
        for _ in self.stages(out, x, seed):
            pass

    def stages(self, out: Tensor, x: Tensor, seed: int) -> Generator[None]:
        """Do the same in two stages: send what was chosen; add up all that has come."""
        self._codec.encode(x, self._own, seed)
        yield from waited_for(self._comm.all_gather(self._all, self._own))
        self._codec.decode_sum(self._all.view(self._comm.size, -1), out)
        out.div_(self._comm.size)

    def clear_sent(self, x: Tensor) -> None:
        """Take from x, (numel,), what this rank's last payload carried: zero where elements were sent as they are."""
        self._codec.clear_sent(self._own, x)
