"""Few elements, the same random ones on every rank, so that an all-reduce can carry them."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import Moment, Slots, State
from pliant.buckets import Bucket
from pliant.codecs import RandomK, spec_of
from pliant.collectives.averaging import SummedAverage
from pliant.comm.base import Comm
from pliant.spec import Choice

__all__ = ["RandomSparse", "randomk"]


@dataclass(frozen=True, kw_only=True)
class RandomSparse:
    """v <- v + g; average v at k random places that all ranks share; there v <- 0.

    Stich et al., Sparsified SGD with memory (arXiv:1809.07599). Bytes: those of an all-reduce of k float32.
    """

    codec: RandomK

    @property
    def choice(self) -> Choice:
        """all_reduce of shared random elements, with feedback on the worker."""
        return Choice(codec=spec_of(self.codec), feedback="worker")

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """The residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the buffer of chosen values."""
        return SummedAverage(self.codec, bucket.numel, comm, bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Exchange."""
        state.workspace(bucket.flat, moment.seed, state.flat["residual"])


def randomk(ratio: float = 0.01) -> RandomSparse:
    """Send `ratio` of the elements, chosen at random and alike on all ranks, with error feedback."""
    return RandomSparse(codec=RandomK(ratio=ratio))
