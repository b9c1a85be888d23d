"""Exact and 16-bit averaging of gradients, as torch DDP does it: the baseline of everything else."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.randomk import RandomKExecutor
from pliant.buckets import Bucket
from pliant.codecs import codec_class
from pliant.collectives.averaging import CastAllReduce, ShortVectorAverage
from pliant.comm.base import Comm
from pliant.comm.works import waited_for
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import AllReduce

__all__ = ["AllReduceExecutor", "averaging"]


def averaging(node: AllReduce) -> "AllReduceExecutor | RandomKExecutor":
    """Return what averages: all elements, or those that all ranks share."""
    shared = node.codec is not None and node.codec.facts.kind == "shared"
    return RandomKExecutor(node) if shared else AllReduceExecutor(node)


@dataclass(frozen=True)
class AllReduceExecutor:
    """g <- (1/n) sum_i g_i by an all-reduce: 2 (n-1)/n N elements out and in per rank.

    With a 16-bit codec the gradient is divided, then cast, then summed in that format. A schedule may take other ways
    than the ring (`ScheduledComm`), and so may short buckets where the node allows few rounds (`ShortVectorAverage`).
    """

    node: AllReduce

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return no slots: nothing is kept."""
        return {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Choose the way of the sums, and make the buffers that it needs."""
        carrier, flat = scheduled(comm, self.node.schedule), bucket.flat
        if self.node.few_rounds:
            return ShortVectorAverage(bucket.numel, carrier, flat.device, dtype=flat.dtype, in_parts=True).add_up
        if self.node.codec is None:
            return partial(_add_up, carrier)
        dtype = codec_class(self.node.codec.name).dtype
        return CastAllReduce(dtype, bucket.numel, carrier, flat.device).stages

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scale first, then add up, as torch DDP does it, to the bit."""
        for _ in self.stages(bucket, state, comm, context):
            pass

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Add up what comes divided."""
        for _ in self.stages(bucket, state, comm, context, prescaled=True):
            pass

    def stages(
        self, bucket: Bucket, state: State, comm: Comm, context: StepContext, *, prescaled: bool = False
    ) -> Generator[None]:
        """Start the sum; wait for it. In halves, add up and send the sums in between. Alone, a sum is what it is."""
        if comm.size == 1:
            return
        if not prescaled:
            bucket.flat.mul_(1 / comm.size)
        yield from state.workspace(bucket.flat)


def _add_up(comm: Comm, x: Tensor) -> Generator[None]:
    yield from waited_for(comm.all_reduce(x))
