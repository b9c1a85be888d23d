"""Rounds of sparse gradients: pairs of index and values by the way that the plan or their sizes say."""

from dataclasses import dataclass

import numpy as np

from pliant.layouts.sparse_rows import cheapest_way
from pliant.netmodel import BucketBatch, DenseExchange, Floats, Round, work
from pliant.simulator.collective_rounds import all_gather, not_posted, of_buckets, ring
from pliant.spec import Exchange, TensorSpec
from pliant.spec.plan import SparseWay

__all__ = ["SparseRows", "row_figures", "stepped_numel"]

_INDEX_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class SparseRows(Exchange):
    """The engine's exchange of a sparse gradient, in the place of the plan's node, which stands in no plan."""

    way: SparseWay = "auto"

    def moves(self, batch: BucketBatch, num_ranks: int) -> list[Round]:
        """Return the rounds of `RowAverage`: all gather how many rows each has for each owner, then one of three ways.

        Ranks have equally many rows, and owners as well.
        """
        ways = np.array([_way(self.way, each, num_ranks) for each in batch.rows])
        held, distinct, num_rows, row_bytes = batch.rows.T
        return [
            *all_gather(np.full(len(ways), _INDEX_BYTES * (num_ranks + 1.0)), num_ranks),
            *of_buckets(ways == "gather", _gather(held, row_bytes, num_ranks)),
            *of_buckets(ways == "owners", _by_owners(held, distinct, row_bytes, num_ranks)),
            *of_buckets(ways == "dense", _dense(num_rows, row_bytes, num_ranks)),
        ]


def row_figures(tensor: TensorSpec, itemsize: int) -> tuple[float, float, int, int]:
    """Return rows of a rank, distinct ones over all ranks' rows, rows of the table, and bytes of a row's values."""
    num_rows = tensor.shape[0] if tensor.shape else 1
    return tensor.sparse_rows, tensor.distinct, num_rows, tensor.numel // max(1, num_rows) * itemsize


def stepped_numel(tensor: TensorSpec, num_ranks: int) -> float:
    """Return the elements that an optimizer steps: of sparse gradients those of the mean's rows."""
    num_rows = tensor.shape[0] if tensor.shape else 1
    together = tensor.sparse_rows * tensor.distinct * num_ranks
    return tensor.numel * min(1.0, together / num_rows) if tensor.sparse_rows else tensor.numel


def _way(way: SparseWay, figures: Floats, num_ranks: int) -> str:
    held, distinct, num_rows, row_bytes = figures.tolist()
    return cheapest_way([held] * num_ranks, distinct, int(num_rows), int(row_bytes)) if way == "auto" else way


def _gather(held: Floats, row_bytes: Floats, num_ranks: int) -> list[Round]:
    """Gather indices and values of all ranks, and add them up."""
    added = {"reduce_bytes": held * (row_bytes + _INDEX_BYTES) * num_ranks}
    indices, values = (_rows(held * size, num_ranks) for size in (_INDEX_BYTES, row_bytes))
    return [*indices, *values, work(added)]


def _by_owners(held: Floats, distinct: Floats, row_bytes: Floats, num_ranks: int) -> list[Round]:
    """Send rows to the owners of their ranges, who add up, and gather the sums."""
    pair_bytes = row_bytes + _INDEX_BYTES
    share = np.full((1, num_ranks), 1 / num_ranks)
    sums = np.ceil(held * distinct)  # of an owner: the rows of the mean over the ranks
    up = Round(
        messages=DenseExchange(give=(held * pair_bytes)[:, None] * share * num_ranks, take=share, rotated=True),
        after={"reduce_bytes": held * pair_bytes},
        split=np.full(len(held), 2.0),  # indices and values
    )
    told = all_gather(np.full(len(held), float(_INDEX_BYTES)), num_ranks)
    indices, values = (_rows(sums * size, num_ranks) for size in (_INDEX_BYTES, row_bytes))
    return [up, *told, *indices, *values, work({"reduce_bytes": sums * pair_bytes * num_ranks})]


def _rows(num_bytes: Floats, num_ranks: int) -> list[Round]:
    """Gather rows of so many bytes from each rank, (num_buckets,), which is known just before."""
    return not_posted(all_gather(num_bytes, num_ranks))


def _dense(num_rows: Floats, row_bytes: Floats, num_ranks: int) -> list[Round]:
    """All-reduce the table, and a mark for each row."""
    table = num_rows * row_bytes
    return [work({"reduce_bytes": 2 * table}), ring(table, num_ranks), ring(num_rows, num_ranks)]
