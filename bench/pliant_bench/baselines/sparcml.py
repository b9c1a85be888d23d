"""SparCML: what ranks chose is added up by regions, and the sums are gathered, sparse or dense."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import add_residual, count_of
from pliant_bench.baselines.streams import add_stream, gather_all, largest, route, stream_of

__all__ = ["SparCml", "split_gather"]


@dataclass(frozen=True, kw_only=True)
class SparCml:
    """Top-k with error feedback, summed by a split and an all-gather that become dense where that is shorter.

    Renggli et al., SparCML (SC'19, arXiv:1802.08021), Algorithm 1 and section 5.3: SSAR_Split_allgather, and
    DSAR_Split_allgather once a region's sum has filled up.

        v <- v + g;  send v at its k largest |v|;  there v <- 0;  g <- sum over ranks / n

    Bytes: at most 8 k (n-1)/n in the split, 8 min(nnz, numel/2n) (n-1) in the gather, and 8 (n-1) of lengths.
    Without its quantization of values.
    """

    ratio: float = 0.01

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        return Custom(name="sparcml", settings={"ratio": self.ratio})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Nothing: streams have other lengths in each step."""

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Choose, exchange, keep the rest."""
        held, finite = add_residual(bucket.flat, state.flat["residual"])
        chosen = largest(held, count_of(self.ratio, bucket.numel))
        values = held[chosen]
        split_gather(bucket.flat, chosen, values, comm)
        bucket.flat.div_(comm.size)
        if finite:
            held[chosen] = 0


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
