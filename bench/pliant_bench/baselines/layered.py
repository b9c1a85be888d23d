"""Blocks of the largest energy, the same share of every layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import BlockTopK
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import add_residual

__all__ = ["UniformBlocks"]


@dataclass(frozen=True, kw_only=True)
class UniformBlocks:
    """Top-k blocks of each parameter by itself, with error feedback: what a global budget is to be compared with.

    Blocks begin with the parameter, so none straddles two. One all-gather of all parameters' payloads: (n-1) times
    4 k (1 + block) bytes, with k = ceil(ratio num_blocks) of each parameter. Every rank chooses by itself.
    """

    ratio: float = 0.01
    block: float = 64

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        return Custom(name="uniform_blocks", settings={"ratio": self.ratio, "block": self.block})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return the codec and every rank's payload, uint8 (size, nbytes)."""
        codec = BlockTopK(ratio=self.ratio, block=int(self.block))
        num_bytes = sum(codec.nbytes(span.numel) for span in bucket.spans)
        return codec, torch.empty(comm.size, num_bytes, dtype=torch.uint8, device=bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Choose in each layer, exchange, keep the rest."""
        codec, payloads = state.workspace
        held, finite = add_residual(bucket.flat, state.flat["residual"])
        own = torch.empty_like(payloads[0])
        for x, payload in zip(_layers(held, bucket), _parts(own, bucket, codec), strict=True):
            codec.encode(x, payload, context.seed)
            if finite:
                codec.clear_sent(payload, x)
        comm.all_gather(payloads.view(-1), own).wait()
        by_rank = zip(*(_parts(row, bucket, codec) for row in payloads), strict=True)
        for out, parts in zip(_layers(bucket.flat, bucket), by_rank, strict=True):
            out.zero_()
            for part in parts:
                codec.decode_add(part, out)
        bucket.flat.div_(comm.size)


def _layers(flat: Tensor, bucket: Bucket) -> list[Tensor]:
    """Return each parameter's part of a vector in the bucket's order."""
    return [flat[span.offset : span.offset + span.numel] for span in bucket.spans]


def _parts(payload: Tensor, bucket: Bucket, codec: BlockTopK) -> list[Tensor]:
    """Return each parameter's part of a rank's payload."""
    return list(payload.split([codec.nbytes(span.numel) for span in bucket.spans]))
