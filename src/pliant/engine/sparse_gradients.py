"""Sparse gradients, as of ``nn.Embedding(sparse=True)``: exchanged exactly, as pairs of index and values or dense."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.buckets import as_real
from pliant.codecs import all_finite
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm, PeerTensors
from pliant.layouts.sparse_rows import cheapest_way
from pliant.spec.plan import SparseWay

__all__ = ["RowAverage", "has_finite_rows"]


def has_finite_rows(g: Tensor) -> bool:
    """Say whether a sparse gradient holds no NaN or Inf."""
    values = g._values()  # pyright: ignore[reportPrivateUsage]  of rows that may come twice, which values() refuses
    return all_finite(as_real(values))


class RowAverage:
    """Mean over ranks of the sparse gradients of one table, by the way that sends fewest bytes.

    All ranks gather how many rows each has, and how many of them for each owner: 8 (n + 1) bytes. Gathers of few bytes
    take few rounds (`comm_for_rows`). Then either

    - gather: indices and values of all ranks, padded to the rank with most rows, m: (n-1) m (8 + w) bytes, with w bytes
      of values in a row;
    - owners: rows go to the owner of their range of the table, who adds up, and sums to all: (n-1)/n (m + u) (8 + w)
      bytes, with u rows in the mean, if owners have equally many of them;
    - dense: an all-reduce of the table and of a mark for each row, 2 (n-1)/n V (w + 1) bytes for V rows.

    The plan says which of them, or it follows from `cheapest_way` with the rows that ranks shared the last time, alike
    on all ranks; the first time none. The first two add up in the order of ranks, as DDP over Gloo does it, to the bit.

    Args:
        way: Way of the plan, for gradients of one index and real numbers; others are always gathered.

    """

    def __init__(self, way: SparseWay = "auto") -> None:
        self._way: SparseWay = way
        self._distinct = 1.0
        self._over: tuple[Comm, Comm] | None = None
        """The ranks of the last call, and what gathers their numbers of rows."""

    def __call__(self, g: Tensor, bad: int, comm: Comm) -> list[int]:
        """Replace a sparse gradient by its mean over ranks, in place; return `bad` of every rank.

        Args:
            g: Sparse COO of any shape; afterwards without an index that comes twice.
            bad: Anything at least 0 if this rank's is not finite, else -1.
            comm: Ranks to average over.

        """
        mine = g.div_(comm.size).coalesce()
        by_row = mine.sparse_dim() == 1 and not mine.is_complex()
        if self._over is None or self._over[0] is not comm:
            self._over = comm, comm_for_rows(comm, 8 * (comm.size + 1), mine.device)
        numbers = self._over[1]
        held, founds = _counts(mine, bad, numbers)
        rows = [sum(each) for each in held]
        row_bytes = mine.values()[:0].element_size() * mine.shape[1:].numel()
        way = self._way if by_row else "gather"
        if way == "auto":
            way = cheapest_way(rows, self._distinct, mine.shape[0], row_bytes)
        if not max(rows):
            total = mine
        elif way == "gather":
            total = _gathered(mine, rows, comm)
        else:
            total = _by_owners(mine, held, comm, numbers) if way == "owners" else _dense(mine, comm)
        self._distinct = total.values().shape[0] / sum(rows) if max(rows) else self._distinct
        g.copy_(total)
        return founds


def _counts(mine: Tensor, bad: int, comm: Comm) -> tuple[list[list[int]], list[int]]:
    """Return how many rows each rank has for each owner, and `bad` of every rank. Collective."""
    first = mine.indices()[0]  # ascending
    ends = torch.tensor([_cut(mine.shape[0], k + 1, comm.size) for k in range(comm.size)], device=mine.device)
    own = torch.searchsorted(first.contiguous(), ends).diff(prepend=ends.new_zeros(1))
    told = torch.cat([own, own.new_tensor([bad])])
    found = torch.empty(comm.size * told.numel(), dtype=torch.int64, device=mine.device)
    comm.all_gather(found, told).wait()
    table: list[list[int]] = found.view(comm.size, -1).tolist()
    return [row[:-1] for row in table], [row[-1] for row in table]


def _cut(num_rows: int, owner: int, num_ranks: int) -> int:
    """Return the first row of an owner's range of a table."""
    return num_rows * owner // num_ranks


def _gathered(mine: Tensor, rows: Sequence[int], comm: Comm) -> Tensor:
    """Return the sum of all ranks' rows, in the order of ranks."""
    most = max(rows)
    all_indices = _gather_rows(mine.indices().t(), most, comm)  # (size, most, sparse dimensions)
    all_values = _gather_rows(mine.values(), most, comm)  # (size, most, *dense dimensions)
    return _added(mine, [(all_indices[r, :held].t(), all_values[r, :held]) for r, held in enumerate(rows)])


def _by_owners(mine: Tensor, held: Sequence[Sequence[int]], comm: Comm, numbers: Comm) -> Tensor:
    """Return the same sum, of which each rank adds up a range of rows; `numbers` gathers how many it has come to."""
    me, size = comm.rank, comm.size
    index_parts, value_parts = mine.indices()[0].split(list(held[me])), mine.values().split(list(held[me]))
    came = [
        (mine.indices().new_empty(held[rank][me]), mine.values().new_empty(held[rank][me], *mine.shape[1:]))
        for rank in range(size)
    ]
    came[me] = index_parts[me], value_parts[me]
    peers = [(me + k) % size for k in range(1, size)]  # rotated: nobody's first is another's
    sends: PeerTensors = [
        (peer, part.contiguous()) for peer in peers if held[me][peer] for part in (index_parts[peer], value_parts[peer])
    ]
    receives: PeerTensors = [(peer, part) for peer in peers if held[peer][me] for part in came[peer]]
    comm.exchange(sends, receives).wait()
    own = _added(mine, [(indices[None], values) for indices, values in came])
    counts = torch.empty(size, dtype=torch.int64, device=mine.device)
    numbers.all_gather(counts, counts.new_tensor([own.values().shape[0]])).wait()
    rows: list[int] = counts.tolist()
    all_indices = _gather_rows(own.indices()[0], max(rows), comm)
    all_values = _gather_rows(own.values(), max(rows), comm)
    indices = torch.cat([all_indices[rank, :count] for rank, count in enumerate(rows)])[None]
    values = torch.cat([all_values[rank, :count] for rank, count in enumerate(rows)])
    return _sparse(indices, values, mine)


def _dense(mine: Tensor, comm: Comm) -> Tensor:
    """Return the same sum, up to rounding, by an all-reduce of the whole table."""
    table, marks = mine.to_dense(), torch.zeros(mine.shape[0], dtype=torch.uint8, device=mine.device)
    marks[mine.indices()[0]] = 1
    comm.all_reduce(table).wait()
    comm.all_reduce(marks, "max").wait()
    touched = marks.nonzero().t()
    return _sparse(touched, table[touched[0]], mine)


def _added(like: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the coalesced sum of (indices, values), one after another."""
    total = _sparse(like.indices()[:, :0], like.values()[:0], like)
    for indices, values in parts:
        total = total + _sparse(indices, values, like)
    return total.coalesce()


def _sparse(indices: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, like.shape, is_coalesced=True, check_invariants=False)


def _gather_rows(x: Tensor, most: int, comm: Comm) -> Tensor:
    """Return all ranks' x, (rows, ...), each padded to `most` rows: (size, most, ...)."""
    padded = x.new_zeros(most, *x.shape[1:])
    padded[: x.shape[0]] = x
    out = x.new_empty(comm.size, *padded.shape)
    gather = comm_for_rows(comm, padded.nbytes, x.device)
    gather.all_gather(as_real(out).view(-1), as_real(padded).view(-1)).wait()
    return out
