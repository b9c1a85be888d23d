"""Averages over all ranks by an all-reduce: exact, in 16 bits, or of the elements that a codec keeps."""

import torch
from torch import Tensor

from pliant.codecs import RandomK, all_finite
from pliant.comm.base import Comm

__all__ = ["CastAverage", "SummedAverage", "average"]


def average(x: Tensor, comm: Comm) -> None:
    """Replace x by the mean over ranks: scaled first, then summed, as torch DDP does it, to the bit."""
    x.mul_(1 / comm.size)
    comm.all_reduce(x).wait()


class CastAverage:
    """The mean in a 16-bit format: divide, cast, sum on the wire in that format, cast back.

    Args:
        dtype: bfloat16 or float16.
        numel: Elements of the vectors to come.
        comm: Who averages.
        device: Where the buffer lies.

    """

    def __init__(self, dtype: torch.dtype, numel: int, comm: Comm, device: torch.device) -> None:
        self._wire = torch.empty(numel, dtype=dtype, device=device)
        self._comm = comm

    def __call__(self, x: Tensor) -> None:
        """Replace x, float32 (numel,), by the mean over ranks."""
        torch.div(x, self._comm.size, out=x)
        self._wire.copy_(x)
        self._comm.all_reduce(self._wire).wait()
        x.copy_(self._wire)


class SummedAverage:
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
        finite = all_finite(x)
        if finite:
            residual.add_(x)
        self._codec.encode(residual if finite else x, self._payload, seed)
        summands = self._codec.summands(self._payload)
        summands.div_(self._comm.size)
        self._comm.all_reduce(summands).wait()
        self._codec.decode(self._payload, x)
        if finite:
            self._codec.clear_sent(self._payload, residual)
