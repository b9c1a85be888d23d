"""Rows of embedding tables: rows.c through ctypes."""

import torch
from torch import Tensor

from pliant.codecs.kernels.library import library, pointer
from pliant.codecs.kernels.reference_rows import ByOwner

__all__ = ["add_rows", "add_squares", "by_owner", "distinct_keys", "subtract_ratios", "subtract_rows"]


def distinct_keys(keys: Tensor, *, ascending: bool = True) -> tuple[Tensor, Tensor]:
    index, found = torch.empty(keys.numel(), dtype=torch.int32), torch.empty_like(keys)
    num = library().number_keys(keys.data_ptr(), keys.numel(), index.data_ptr(), found.data_ptr())
    if num < 0:
        raise MemoryError(f"there is no memory to find what is distinct among {keys.numel()} keys.")
    if not ascending:
        return found[:num].clone(), index
    distinct, order = found[:num].sort()
    places = torch.empty(num, dtype=torch.int32)
    places[order] = torch.arange(num, dtype=torch.int32)
    return distinct, places.index_select(0, index)


def add_rows(
    sums: Tensor, index: Tensor, vectors: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None
) -> None:
    pointers = sums.data_ptr(), index.data_ptr(), vectors.data_ptr(), pointer(lengths), pointer(weights)
    library().add_rows(*pointers, len(vectors), index.numel(), vectors.shape[1])


def subtract_rows(rows: Tensor, slots: Tensor, changes: Tensor) -> None:
    pointers = rows.data_ptr(), slots.data_ptr(), changes.data_ptr()
    _no_stray_rows(library().subtract_rows(*pointers, len(rows), *changes.shape), rows)


def add_squares(squares: Tensor, slots: Tensor, gradients: Tensor) -> Tensor:
    totals = torch.empty_like(gradients)
    pointers = squares.data_ptr(), slots.data_ptr(), gradients.data_ptr(), totals.data_ptr()
    _no_stray_rows(library().add_squares(*pointers, len(squares), *gradients.shape), squares)
    return totals


def subtract_ratios(rows: Tensor, slots: Tensor, gradients: Tensor, roots: Tensor, *, lr: float, eps: float) -> None:
    pointers = rows.data_ptr(), slots.data_ptr(), gradients.data_ptr(), roots.data_ptr()
    _no_stray_rows(library().subtract_ratios(*pointers, len(rows), *gradients.shape, lr, eps), rows)


def _no_stray_rows(strays: int, rows: Tensor) -> None:
    if strays:
        raise IndexError(f"{strays} gradients are of rows outside of the {len(rows)} here; nothing was changed.")


def by_owner(keys: Tensor, lengths: Tensor, weights: Tensor | None, stride: int, num_ranks: int) -> ByOwner:
    counts = torch.empty(5, num_ranks, dtype=torch.int64)
    slots = torch.empty_like(keys, dtype=torch.int32)
    owners_weights = None if weights is None else torch.empty_like(weights)
    bags = lengths.new_empty(min(keys.numel(), num_ranks * lengths.numel()))
    owners_lengths = torch.empty_like(bags, dtype=torch.int32)
    library().by_owner(
        *(keys.data_ptr(), lengths.data_ptr(), pointer(weights), lengths.numel(), stride, num_ranks),
        *(counts[0].data_ptr(), counts[1].data_ptr(), counts[2].data_ptr()),
        *(slots.data_ptr(), pointer(owners_weights), bags.data_ptr(), owners_lengths.data_ptr()),
    )
    num_ids, num_bags = counts[:2].tolist()
    found = sum(num_bags)
    return ByOwner(slots, owners_weights, bags[:found].clone(), owners_lengths[:found].clone(), num_ids, num_bags)
