"""Every gradient element in fewer bits, over scatter - reduce - gather (BAGUA's C_LP_S).

Which known methods are which settings: ByteGrad = minmax8 without feedback; QSGD = qsgd without feedback, unbiased;
DoubleSqueeze / 1-bit SGD = sign with feedback on worker and owner; TernGrad = ternary without feedback.
"""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import codec_from
from pliant.collectives.compressed import CompressedAverage
from pliant.comm.base import Comm
from pliant.spec import ScatterGather

__all__ = ["ScatterGatherExecutor"]


@dataclass(frozen=True)
class ScatterGatherExecutor:
    """Average gradients with a codec in both directions.

    Each rank owns 1/n of a bucket. Rank i sends C(g_i + e_i) of each chunk to its owner; the owner decodes and adds,
    divides by n, encodes the mean and sends it to all; every rank, the owner too, decodes the same bytes.
    Bytes: 2 (n-1)/n of the codec's size out and in per rank. Residuals e are kept by workers and, with feedback
    'both', by owners. Gan et al., BAGUA (arXiv:2107.01499, C_LP_S); Tang et al., DoubleSqueeze (arXiv:1905.05957).
    """

    node: ScatterGather

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A residual, if there is feedback."""
        return {} if self.node.feedback == "none" else {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the payload buffers of the exchange."""
        return CompressedAverage(
            codec_from(self.node.codec),
            bucket.numel,
            comm,
            chunk_bytes=self.node.chunk_bytes,
            owner_feedback=self.node.feedback == "both",
            device=bucket.flat.device,
        )

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Scatter, reduce and gather the bucket."""
        state.workspace(bucket.flat, context.seed, state.flat.get("residual"))
