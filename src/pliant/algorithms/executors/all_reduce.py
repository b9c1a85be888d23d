"""Exact and 16-bit averaging of gradients, as torch DDP does it: the baseline of everything else."""

from dataclasses import dataclass
from typing import Any

import torch

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.collectives.averaging import CastAllReduce
from pliant.comm.base import Comm
from pliant.spec import AllReduce

__all__ = ["AllReduceExecutor"]

_WIRE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class AllReduceExecutor:
    """g <- (1/n) sum_i g_i by an all-reduce: 2 (n-1)/n N elements out and in per rank.

    With a 16-bit codec the gradient is divided, then cast, then summed in that format.
    """

    node: AllReduce

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return no slots: nothing is kept."""
        return {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the 16-bit buffer, if one is needed."""
        if self.node.codec is None:
            return None
        return CastAllReduce(_WIRE[self.node.codec.name], bucket.numel, comm, bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scale first, then add up, as torch DDP does it, to the bit."""
        bucket.flat.mul_(1 / comm.size)
        self.on_prescaled(bucket, state, comm, context)

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Add up what comes divided."""
        if state.workspace is None:
            comm.all_reduce(bucket.flat).wait()
        else:
            state.workspace(bucket.flat)
