"""Quantized averages of gradients by scatter - reduce - gather (BAGUA's C_LP_S).

Known methods are settings of it: ByteGrad = minmax8 without feedback; QSGD = qsgd without feedback, unbiased;
DoubleSqueeze / 1-bit SGD = sign with feedback on worker and owner; TernGrad = ternary without feedback; of MuLoCo's
changes (arXiv:2505.23725) = sigma2 with feedback that fades.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.coded_average import coded_average
from pliant.buckets import Bucket
from pliant.codecs import codec_from, decay_residual
from pliant.comm.base import Comm
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import ScatterGather

__all__ = ["ScatterGatherExecutor"]


@dataclass(frozen=True)
class ScatterGatherExecutor:
    """Average gradients with a codec in both directions.

    Each rank owns 1/n of a bucket. Rank i sends C(g_i + e_i) of each chunk to its owner; the owner decodes and adds,
    divides by n, encodes the mean and sends it to all; every rank, the owner too, decodes the same bytes.
    Bytes: 2 (n-1)/n of the codec's size out and in per rank. Residuals e are kept by workers and, with feedback
    'both', by owners; with `decay`, e <- decay e comes first. Gan et al., BAGUA (arXiv:2107.01499, C_LP_S); Tang et
    al., DoubleSqueeze (arXiv:1905.05957). A schedule may take other ways (`ScheduledCodedAverage`).
    """

    node: ScatterGather

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A residual, if there is feedback."""
        return {} if self.node.feedback == "none" else {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the payload buffers of the exchange."""
        return coded_average(
            codec_from(self.node.codec),
            bucket.numel,
            scheduled(comm, self.node.schedule),
            chunk_bytes=self.node.chunk_bytes,
            owner_feedback=self.node.feedback == "both",
            device=bucket.flat.device,
        )

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scatter, reduce and gather the bucket."""
        for _ in self.stages(bucket, state, comm, context):
            pass

    def stages(
        self, bucket: Bucket, state: State, comm: Comm, context: StepContext, *, prescaled: bool = False
    ) -> Generator[None]:
        """Scatter; reduce, and send what is gathered; take it."""
        if self.node.decay < 1:
            decay_residual(state.flat["residual"], bucket.flat, self.node.decay)
        yield from state.workspace.stages(bucket.flat, context.seed, state.flat.get("residual"))
