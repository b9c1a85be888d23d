"""Rows of embedding tables, in plain torch: the twins of rows.c."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

__all__ = ["ByOwner", "add_rows", "add_squares", "by_owner", "distinct_keys", "subtract_ratios", "subtract_rows"]


class ByOwner(NamedTuple):
    """Ids of bags, divided among the owners of their keys; of each owner in the order in which they were given.

    Attributes:
        slots: At the owner, int32 (num_ids,).
        weights: Of ids, where there are any, float32 (num_ids,).
        bags: For each owner, those that need it, int64 (num_pairs,).
        lengths: Their ids there, int32 (num_pairs,).
        num_ids, num_bags: Of each owner.

    """

    slots: Tensor
    weights: Tensor | None
    bags: Tensor
    lengths: Tensor
    num_ids: list[int]
    num_bags: list[int]


def distinct_keys(keys: Tensor, *, ascending: bool = True) -> tuple[Tensor, Tensor]:
    """Return the distinct ones of keys, int64 (num,), ascending, and the place of each key there, int32."""
    del ascending  # they always are
    distinct, index = torch.unique(keys, return_inverse=True)
    return distinct, index.to(torch.int32)


def add_rows(
    sums: Tensor, index: Tensor, vectors: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None
) -> None:
    """Add to row index[i] of sums, float32 (num, dim), weights[i] times the vector of i, in order of i.

    Args:
        sums: Of zeros, if an index comes twice: what is alike is summed first.
        index: int32 (members,).
        vectors: float32 (num vectors, dim).
        lengths: How many members each vector has, one vector's after another's, int64; None: one each.
        weights: float32 (members,); None: ones.

    """
    if len(index) == 0:
        return
    distinct, its = torch.unique(index, return_inverse=True)
    order = torch.sort(its, stable=True)[1]
    starts = torch.searchsorted(its[order], torch.arange(len(distinct), device=index.device))
    which = torch.arange(len(vectors), device=index.device)
    which = (which if lengths is None else which.repeat_interleave(lengths))[order]
    weights = None if weights is None else weights[order]
    sums[distinct] += embedding_bag(which, vectors, starts, mode="sum", per_sample_weights=weights)


def subtract_rows(rows: Tensor, slots: Tensor, changes: Tensor) -> None:
    """Subtract changes, float32 (num, dim), from rows at slots, int64 (num,), none of which comes twice."""
    rows[slots] = rows.index_select(0, slots).sub_(changes)


def add_squares(squares: Tensor, slots: Tensor, gradients: Tensor) -> Tensor:
    """Add g * g to squares at slots; return what is there then, float32 (num, dim)."""
    totals = squares.index_select(0, slots).add_(gradients * gradients)
    squares[slots] = totals
    return totals


def subtract_ratios(rows: Tensor, slots: Tensor, gradients: Tensor, roots: Tensor, *, lr: float, eps: float) -> None:
    """Subtract lr g / (roots + eps), float32 (num, dim), from rows at slots; products are rounded before sums."""
    subtract_rows(rows, slots, (gradients * lr).div_(roots + eps))


def by_owner(keys: Tensor, lengths: Tensor, weights: Tensor | None, stride: int, num_ranks: int) -> ByOwner:
    """Divide the ids of bags among owners, given their keys, owner * stride + slot, int64 (num_ids,).

    Args:
        keys: One bag's after another's.
        lengths: Of bags, int64 (num_bags,).
        weights: Of ids, float32 (num_ids,).
        stride: Slots of an owner, or more.
        num_ranks: Owners.

    """
    owners = keys // stride
    order = torch.sort(owners, stable=True)[1]
    bags = torch.arange(len(lengths), device=keys.device).repeat_interleave(lengths)
    pairs, its = torch.unique_consecutive(torch.stack([owners, bags])[:, order], dim=1, return_counts=True)
    slots = (keys - owners * stride).to(torch.int32)[order]
    num_ids, num_bags = (torch.bincount(x, minlength=num_ranks).tolist() for x in (owners, pairs[0]))
    weights = None if weights is None else weights[order]
    return ByOwner(slots, weights, pairs[1], its.to(torch.int32), num_ids, num_bags)
