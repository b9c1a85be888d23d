"""SparCML: what ranks chose is added up by regions, and the sums are gathered, sparse or dense."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import Codec
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import add_residual, count_of
from pliant_bench.baselines.streams import (
    add_coded,
    add_stream,
    codec_of,
    coded_stream,
    gather_all,
    largest,
    route,
    stream_of,
)

__all__ = ["SparCml", "coded_split_gather", "split_gather"]


@dataclass(frozen=True, kw_only=True)
class SparCml:
    """Top-k with error feedback, summed by a split and an all-gather that become dense where that is shorter.

    Renggli et al., SparCML (SC'19, arXiv:1802.08021), Algorithm 1 and section 5.3: SSAR_Split_allgather, and
    DSAR_Split_allgather once a region's sum has filled up.

        v <- v + g;  send v at its k largest |v|;  there v <- 0;  g <- sum over ranks / n

    Bytes: at most 8 k (n-1)/n in the split, 8 min(nnz, numel/2n) (n-1) in the gather, and 8 (n-1) of lengths.

    With ``bits=4`` values travel in 4 bits, sparse and dense ones (section 6), in blocks of 64: an element takes 4.6
    bytes instead of 8. What rounding loses stays with the rank that rounded, also that of a region's sum.
    """

    ratio: float = 0.01
    bits: float = 32

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        return Custom(name="sparcml", settings={"ratio": self.ratio, "bits": self.bits})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Nothing: streams have other lengths in each step."""

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Choose, exchange, keep the rest."""
        held, finite = add_residual(bucket.flat, state.flat["residual"])
        chosen = largest(held, count_of(self.ratio, bucket.numel))
        sent, codec = held[chosen], codec_of(self.bits)
        if codec is None:
            split_gather(bucket.flat, chosen, sent, comm)
            lost = None
        else:
            lost = coded_split_gather(bucket.flat, chosen, sent, comm, codec, context.seed)
        if finite:
            held[chosen] = 0
        if finite and lost is not None:
            held.add_(torch.where(lost.isfinite(), lost, 0.0))
        bucket.flat.div_(comm.size)


def split_gather(out: Tensor, places: Tensor, values: Tensor, comm: Comm) -> None:
    """Overwrite out, (numel,), by the sum over ranks of the values, (k,), at ascending places, int64 (k,).

    Phases: rank j owns the j-th n-th of the places and is sent what others chose there; it adds up in the order of
    ranks and sends the sum to all. Results are equal to the bit.
    """
    size, numel = comm.size, out.numel()
    bounds = [numel * j // size for j in range(size + 1)]
    cuts = torch.searchsorted(places, torch.tensor(bounds, device=places.device)).tolist()
    parts = [
        stream_of(places[cuts[j] : cuts[j + 1]] - bounds[j], values[cuts[j] : cuts[j + 1]], bounds[j + 1] - bounds[j])
        for j in range(size)
    ]
    out.zero_()
    mine = out[bounds[comm.rank] : bounds[comm.rank + 1]]
    for stream in route(parts, comm):
        add_stream(stream, mine)
    filled = mine.nonzero().flatten()
    sums = gather_all(stream_of(filled, mine[filled], mine.numel()), comm)
    for j, stream in enumerate(sums):
        if j != comm.rank:
            add_stream(stream, out[bounds[j] : bounds[j + 1]])


def coded_split_gather(out: Tensor, places: Tensor, values: Tensor, comm: Comm, codec: Codec, seed: int) -> Tensor:
    """Do what `split_gather` does with values in codes; return what this rank's rounding has lost, (numel,).

    The sum over ranks of values is out plus the sum over ranks of what was lost. Results are equal to the bit.
    """
    size, numel = comm.size, out.numel()
    bounds = [numel * j // size for j in range(size + 1)]
    cuts = torch.searchsorted(places, torch.tensor(bounds, device=places.device)).tolist()
    lost, parts = torch.zeros_like(out), list[Tensor]()
    for j in range(size):
        at, chosen = places[cuts[j] : cuts[j + 1]], values[cuts[j] : cuts[j + 1]]
        extent, arrived = bounds[j + 1] - bounds[j], out[bounds[j] : bounds[j + 1]].zero_()
        parts.append(coded_stream(at - bounds[j], chosen, extent, codec, seed + comm.rank))
        add_coded(parts[j], arrived, codec)
        lost[at] = chosen
        lost[bounds[j] : bounds[j + 1]] -= arrived
    out.zero_()
    mine = out[bounds[comm.rank] : bounds[comm.rank + 1]]
    for stream in route(parts, comm):
        add_coded(stream, mine, codec)
    filled = mine.nonzero().flatten()
    sums = gather_all(coded_stream(filled, mine[filled], mine.numel(), codec, seed), comm)
    lost[bounds[comm.rank] : bounds[comm.rank + 1]] += mine
    out.zero_()
    for j, stream in enumerate(sums):
        add_coded(stream, out[bounds[j] : bounds[j + 1]], codec)
    lost[bounds[comm.rank] : bounds[comm.rank + 1]] -= mine
    return lost
