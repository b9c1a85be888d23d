"""Sparse gradients, as of ``nn.Embedding(sparse=True)``: exchanged exactly, as pairs of index and values."""

import torch
from torch import Tensor

from pliant.buckets import as_real
from pliant.codecs import all_finite
from pliant.comm.base import Comm

__all__ = ["average_rows", "has_finite_rows"]


def has_finite_rows(g: Tensor) -> bool:
    """Say whether a sparse gradient holds no NaN or Inf."""
    values = g._values()  # pyright: ignore[reportPrivateUsage]  of rows that may come twice, which values() refuses
    return all_finite(as_real(values))


def average_rows(g: Tensor, bad: int, comm: Comm) -> list[int]:
    """Replace a sparse gradient by its mean over ranks, in place; return what every rank gave as `bad`.

    All-gather of counts, then of indices and of values, padded to those of the rank that has most; added up in the
    order of ranks, as DDP over Gloo does it, to the bit. Bytes out and in per rank: (n-1) (16 + rows (8 + row bytes)).

    Args:
        g: Sparse COO of any shape; afterwards without an index that comes twice.
        bad: Anything at least 0 if this rank's is not finite, else -1.
        comm: Who averages.

    """
    mine = g.div_(comm.size).coalesce()
    device, indices, values = mine.device, mine.indices(), mine.values()
    counts = torch.empty(2 * comm.size, dtype=torch.int64, device=device)
    comm.all_gather(counts, torch.tensor([values.shape[0], bad], dtype=torch.int64, device=device)).wait()
    rows: list[list[int]] = counts.view(comm.size, 2).tolist()
    most = max(held for held, _ in rows)
    total = torch.sparse_coo_tensor(indices[:, :0], values[:0], mine.shape, is_coalesced=True, check_invariants=False)
    if most:
        all_indices = _gather_rows(indices.t(), most, comm)  # (size, most, sparse dimensions)
        all_values = _gather_rows(values, most, comm)  # (size, most, *dense dimensions)
        for rank, (held, _) in enumerate(rows):
            own = all_indices[rank, :held].t(), all_values[rank, :held]
            total = total + torch.sparse_coo_tensor(*own, mine.shape, is_coalesced=True, check_invariants=False)
    g.copy_(total.coalesce())
    return [theirs for _, theirs in rows]


def _gather_rows(x: Tensor, most: int, comm: Comm) -> Tensor:
    """Return all ranks' x, (rows, ...), each padded to `most` rows: (size, most, ...)."""
    padded = x.new_zeros(most, *x.shape[1:])
    padded[: x.shape[0]] = x
    out = x.new_empty(comm.size, *padded.shape)
    comm.all_gather(as_real(out).view(-1), as_real(padded).view(-1)).wait()
    return out
