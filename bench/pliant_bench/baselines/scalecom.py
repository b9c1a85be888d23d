"""ScaleCom: one rank after the other says which elements all of them send."""

from dataclasses import dataclass
from typing import Any

import torch

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import all_finite
from pliant.collectives import CompressedAverage
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import count_of
from pliant_bench.baselines.streams import codec_of, largest

__all__ = ["ScaleCom"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ScaleCom:
    """The leader's top-k places, at which everybody's values are summed; residuals pass through a low-pass filter.

    Chen et al., ScaleCom (NeurIPS'20, arXiv:2104.11125), Algorithm 1, with m the residual and the leader t mod n:

        I = places of the k largest |m + g| of the leader;  s = m + g at I;  g <- sum over ranks of s / n
        m <- m + beta (g - s), s being 0 elsewhere: (1 - beta) m + beta (m + g - s)

    beta = 1 is error feedback as ever; the paper takes 0.1 where large batches make learning rates large.
    Bytes: 4 k of places from the leader to each, and an all-reduce of k float32; with ``bits=4`` the values go to
    owners and back in 4 bits, and what rounding loses counts as not sent.
    """

    ratio: float = 0.01
    beta: float = 1.0
    bits: float = 32

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        return Custom(name="scalecom", settings={"ratio": self.ratio, "beta": self.beta, "bits": self.bits})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual m."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return the buffer of places, and how values are averaged in codes, if they are."""
        k, device = count_of(self.ratio, bucket.numel), bucket.flat.device
        codec = codec_of(self.bits)
        coded = codec and CompressedAverage(
            codec, k, comm, chunk_bytes=_CHUNK_BYTES, owner_feedback=True, device=device
        )
        return torch.empty(k, dtype=torch.int32, device=device), coded

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Follow the leader, sum, filter."""
        g, m = bucket.flat, state.flat["residual"]
        places, coded = state.workspace
        finite = all_finite(g)
        held = m + g
        leader = context.step % comm.size
        if comm.rank == leader:
            places.copy_(largest(held, places.numel()))
        comm.broadcast(places, leader).wait()
        at = places.long()
        sent = held[at] if finite else torch.full_like(held[at], torch.nan)  # an overflow elsewhere must not be hidden
        mean, lost = sent.clone(), torch.zeros_like(sent)
        if coded is None:
            comm.all_reduce(mean).wait()
            mean.div_(comm.size)
        else:
            coded(mean, context.seed, lost)
        if finite:
            m.add_(g, alpha=self.beta)
            m[at] -= self.beta * (sent - lost)
        g.zero_()
        g[at] = mean
