"""Few elements, the same random ones on every rank, so that an all-reduce can carry them."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, cast

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import RandomK, codec_from
from pliant.collectives.averaging import SharedSparseAverage
from pliant.comm.base import Comm
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import AllReduce, CodecSpec

__all__ = ["RandomKExecutor"]


@dataclass(frozen=True)
class RandomKExecutor:
    """v <- v + g; average v at k random places that all ranks share; there v <- 0.

    Stich et al., Sparsified SGD with memory (arXiv:1809.07599). Bytes: those of an all-reduce of k float32.
    """

    node: AllReduce

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the buffer of chosen values."""
        codec = codec_from(cast(CodecSpec, self.node.codec))
        carrier = scheduled(comm, self.node.schedule)
        return SharedSparseAverage(cast(RandomK, codec), bucket.numel, carrier, bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Average the elements that all ranks draw."""
        for _ in self.stages(bucket, state, comm, context):
            pass

    def stages(
        self, bucket: Bucket, state: State, comm: Comm, context: StepContext, *, prescaled: bool = False
    ) -> Generator[None]:
        """Start the sum of what is drawn; wait for it. Alone, everything is there."""
        if comm.size == 1:
            return
        yield from state.workspace.stages(bucket.flat, context.seed, state.flat["residual"])
