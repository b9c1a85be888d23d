"""Every gradient element in fewer bits, over scatter - reduce - gather (BAGUA's C_LP_S).

Which known methods are which settings: ByteGrad = minmax8 without feedback; QSGD = qsgd without feedback, unbiased;
DoubleSqueeze / 1-bit SGD = sign with feedback on worker and owner; TernGrad = ternary without feedback.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from pliant.algorithms.base import Moment, Slots, State
from pliant.buckets import Bucket
from pliant.codecs import Codec, Int4, MinMax8, Natural, Qsgd, Sign, Ternary, spec_of
from pliant.collectives.compressed import CompressedAverage
from pliant.comm.base import Comm
from pliant.spec import Choice

__all__ = ["Quantized", "bytegrad", "int4", "natural", "onebit", "qsgd", "terngrad"]


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Average gradients with a codec in both directions.

    Each rank owns 1/n of a bucket. Rank i sends C(g_i + e_i) of each chunk to its owner; the owner decodes and adds,
    divides by n, encodes the mean and sends it to all; every rank, the owner too, decodes the same bytes.
    Bytes: 2 (n-1)/n of the codec's size out and in per rank. Residuals e are kept by workers and, with feedback
    'both', by owners. Gan et al., BAGUA (arXiv:2107.01499, C_LP_S); Tang et al., DoubleSqueeze (arXiv:1905.05957).
    """

    codec: Codec
    feedback: Literal["none", "worker", "both"] = "none"
    chunk_bytes: int = field(default=1 << 20)

    @property
    def choice(self) -> Choice:
        """scatter_gather with this codec."""
        return Choice(
            collective="scatter_gather",
            codec=spec_of(self.codec),
            feedback=self.feedback,
            chunk_bytes=self.chunk_bytes,
        )

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """A residual, if there is feedback."""
        return {} if self.feedback == "none" else {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the payload buffers of the exchange."""
        return CompressedAverage(
            self.codec,
            bucket.numel,
            comm,
            chunk_bytes=self.chunk_bytes,
            owner_feedback=self.feedback == "both",
            device=bucket.flat.device,
        )

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Exchange."""
        state.workspace(bucket.flat, moment.seed, state.flat.get("residual"))


def bytegrad() -> Quantized:
    """8-bit min-max quantization, deterministic, no feedback: BAGUA's ByteGrad with its codec's flaws removed."""
    return Quantized(codec=MinMax8())


def qsgd(bits: int = 8) -> Quantized:
    """Stochastic, unbiased quantization to 2, 4 or 8 bits (Alistarh et al., arXiv:1610.02132)."""
    return Quantized(codec=Qsgd(bits=bits))


def onebit() -> Quantized:
    """One bit and a scale, with error feedback on both sides (Seide et al. 2014; DoubleSqueeze)."""
    return Quantized(codec=Sign(), feedback="both")


def terngrad() -> Quantized:
    """Stochastic signs and zeros, unbiased (Wen et al., arXiv:1705.07878)."""
    return Quantized(codec=Ternary())


def natural() -> Quantized:
    """Stochastic rounding to powers of two, unbiased (Horvath et al., arXiv:1905.10988)."""
    return Quantized(codec=Natural())


def int4() -> Quantized:
    """Deterministic 4-bit blocks with error feedback on both sides."""
    return Quantized(codec=Int4(), feedback="both")
