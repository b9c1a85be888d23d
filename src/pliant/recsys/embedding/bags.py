"""Lookups of one rank in a step: ids of all tables in a row, cut into bags, checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pliant.recsys.embedding.features import Feature, features_of, in_order
from pliant.spec import Table

__all__ = ["BagBatch", "BagRun", "Inputs", "read_batch"]

Inputs = Any
"""For each feature, in the order of tables and of features in each, (ids, offsets), (ids, offsets, weights), or ids of
shape (bags, ids in each), alone or as (ids, None, weights). Or a mapping from names to these, in any order. Or a
KeyedJaggedTensor of TorchRec, also in any order: what has `keys()`, `lengths()`, `values()` and `weights_or_none()`.
"""


@dataclass(frozen=True, kw_only=True)
class BagRun:
    """Bags that follow each other and are pooled alike: they, and their ids, are slices of a batch."""

    bags: slice
    ids: slice
    mean: bool
    weighted: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class BagBatch:
    """Bags of ids of several tables, one table after another; what pads is gone.

    Attributes:
        ids: int64 (num_ids,).
        lengths: Of each bag, int64 (num_bags,).
        weights: float32 (num_ids,), or None where no table has any.
        id_ends: Where each table's ids end, after a zero.
        bag_ends: Where its bags end, after a zero.
        of_features: How many of these each feature has, (features,) of each table: one feature's after another's.

    """

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None
    id_ends: tuple[int, ...]
    bag_ends: tuple[int, ...]
    of_features: tuple[tuple[int, ...], ...]

    @property
    def num_bags(self) -> int:
        """Bags of all tables."""
        return self.bag_ends[-1]

    def starts(self) -> Tensor:
        """Return where each bag's ids begin, int64 (num_bags,)."""
        return self.lengths.cumsum(0) - self.lengths

    def num_ids_of(self) -> Tensor:
        """Return the ids of each table, int64 (tables,)."""
        ends = torch.tensor(self.id_ends, device=self.ids.device)
        return ends[1:] - ends[:-1]

    def repeat(self, per_table: Tensor) -> Tensor:
        """Return for each id the number, (tables,), of its table."""
        return per_table.repeat_interleave(self.num_ids_of(), output_size=len(self.ids))

    def select(self, tables: Sequence[int]) -> "BagBatch":
        """Return the batch of these tables, in this order; one may come twice."""
        if list(tables) == list(range(len(self.id_ends) - 1)):
            return self
        ids = [slice(self.id_ends[t], self.id_ends[t + 1]) for t in tables]
        bags = [slice(self.bag_ends[t], self.bag_ends[t + 1]) for t in tables]
        return BagBatch(
            ids=torch.cat([self.ids[s] for s in ids]),
            lengths=torch.cat([self.lengths[s] for s in bags]),
            weights=None if self.weights is None else torch.cat([self.weights[s] for s in ids]),
            id_ends=_ends([s.stop - s.start for s in ids]),
            bag_ends=_ends([s.stop - s.start for s in bags]),
            of_features=tuple(self.of_features[t] for t in tables),
        )

    def where(self, keep: Tensor) -> "BagBatch":
        """Return the same bags with those ids only for which `keep`, bool (num_ids,), is true."""
        before = torch.zeros(len(keep) + 1, dtype=torch.int64, device=keep.device)
        torch.cumsum(keep, 0, out=before[1:])
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        return BagBatch(
            ids=self.ids[keep],
            lengths=torch.diff(before[ends]),
            weights=None if self.weights is None else self.weights[keep],
            id_ends=tuple(before[list(self.id_ends)].tolist()),
            bag_ends=self.bag_ends,
            of_features=self.of_features,
        )

    def runs(self, tables: Sequence[Table]) -> list[BagRun]:
        """Return the runs of bags, given the tables of this batch; those that pool alike should be side by side."""
        found: list[BagRun] = []
        for t, table in enumerate(tables):
            mean, ids, bags = table.pooling == "mean", self.id_ends[t], self.bag_ends[t]
            if found and (found[-1].mean, found[-1].weighted) == (mean, table.weighted):
                last = found.pop()
                ids, bags = last.ids.start, last.bags.start
            bags_to, ids_to = self.bag_ends[t + 1], self.id_ends[t + 1]
            found.append(BagRun(bags=slice(bags, bags_to), ids=slice(ids, ids_to), mean=mean, weighted=table.weighted))
        return found


def _ends(counts: Sequence[int]) -> tuple[int, ...]:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return tuple(ends)


def read_batch(
    tables: Sequence[Table], inputs: Inputs, device: torch.device, *, last_offsets: Sequence[bool] | None = None
) -> BagBatch:
    """Return what these inputs ask for.

    Args:
        tables: In the order of inputs.
        inputs: See `Inputs`.
        device: Where the batch shall be.
        last_offsets: Whether the offsets of each table end with the number of its ids.

    Raises:
        TypeError: What came is no tensor of integers.
        ValueError: Too many inputs or too few, or of other names; offsets that are not sorted, weights where none
            belong, or not finite.
        IndexError: An id that its table does not have.

    """
    features = features_of(tables)
    given = in_order(features, inputs)
    last = [bool(last_offsets and last_offsets[t]) for t, table in enumerate(tables) for _ in table.inputs]
    ids, starts, weights, num_bags = [], [], [], []
    at = 0
    for feature, its, ends in zip(features, given, last, strict=True):
        own, offsets, own_weights = _parts(feature, its, device, last=ends)
        ids.append(own)
        starts.append(offsets + at)
        weights.append(own_weights)
        num_bags.append(len(offsets))
        at += len(own)
    all_ids, all_starts = torch.cat(ids), torch.cat(starts)
    lengths = torch.diff(all_starts, append=all_starts.new_tensor([at]))  # (bags of all features,)
    id_ends, bag_ends = _ends([len(own) for own in ids]), _ends(num_bags)
    _check_offsets(features, all_starts, lengths, id_ends, bag_ends)
    _check_ids(features, all_ids, id_ends)
    firsts = _ends([len(table.inputs) for table in tables])  # of each table's features
    batch = BagBatch(
        ids=all_ids,
        lengths=lengths,
        weights=_join_weights(ids, weights) if any(w is not None for w in weights) else None,
        id_ends=tuple(id_ends[k] for k in firsts),
        bag_ends=tuple(bag_ends[k] for k in firsts),
        of_features=tuple(tuple(num_bags[a:b]) for a, b in pairwise(firsts)),
    )
    return _without_padding(tables, batch)


def _parts(feature: Feature, given: Any, device: torch.device, *, last: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ids, int64 (num_ids,), where bags begin, int64 (num_bags,), and weights, float32 (num_ids,), or None."""
    parts: tuple[Any, ...] = (*given, None, None) if isinstance(given, (tuple, list)) else (given, None, None)
    ids, offsets, weights = parts[:3]
    for what, x in [("ids", ids)] if offsets is None else [("ids", ids), ("offsets", offsets)]:
        if not isinstance(x, Tensor) or x.dtype not in (torch.int64, torch.int32):
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{what} of {feature} are {kind}; they must be a tensor of int64 or int32.")
    if ids.dim() == 2 and offsets is None:
        num_bags, each = ids.shape
        starts = torch.arange(num_bags, device=device) * each
    elif ids.dim() == 1 and offsets is not None and offsets.dim() == 1:
        starts = offsets.to(device, torch.int64)
        if last:
            if len(starts) == 0 or int(starts[-1]) != len(ids):
                raise ValueError(f"offsets of {feature} must end with the number of its ids, {len(ids)}.")
            starts = starts[:-1]
    else:
        raise ValueError(
            f"ids of {feature} have shape {tuple(ids.shape)}, offsets "
            f"{None if offsets is None else tuple(offsets.shape)}; give ids (n,) and offsets (bags,), or ids (bags, k)."
        )
    if weights is not None:
        weights = _checked_weights(feature, ids, weights, device)
    elif feature.table.weighted:
        weights = torch.ones(ids.numel(), dtype=torch.float32, device=device)
    return ids.reshape(-1).to(device, torch.int64), starts, weights


def _checked_weights(feature: Feature, ids: Tensor, weights: Any, device: torch.device) -> Tensor:
    if not feature.table.weighted:
        raise ValueError(
            f"{feature} got weights, but it has none; say `weighted=True` in its table's record, or give ids without."
        )
    if not isinstance(weights, Tensor) or weights.shape != ids.shape or not weights.is_floating_point():
        raise ValueError(f"weights of {feature} must be floats of the shape of its ids, {tuple(ids.shape)}.")
    if weights.requires_grad:
        raise ValueError(f"weights of {feature} want a gradient, but none comes back; detach() them.")
    if not bool(weights.isfinite().all()):
        raise ValueError(f"weights of {feature} hold a NaN or an Inf.")
    return weights.reshape(-1).to(device, torch.float32)


def _join_weights(ids: Sequence[Tensor], weights: Sequence[Tensor | None]) -> Tensor:
    return torch.cat(
        [torch.ones_like(i, dtype=torch.float32) if w is None else w for i, w in zip(ids, weights, strict=True)]
    )


def _check_offsets(
    features: Sequence[Feature], starts: Tensor, lengths: Tensor, id_ends: Sequence[int], bag_ends: Sequence[int]
) -> None:
    firsts = [(k, at) for k, at in enumerate(bag_ends[:-1]) if at < bag_ends[k + 1]]
    found = starts[[at for _, at in firsts]].tolist()
    for (k, _), first in zip(firsts, found, strict=True):
        if first != id_ends[k]:
            raise ValueError(f"offsets of {features[k]} begin with {first - id_ends[k]}; they begin with 0.")
    for k, feature in enumerate(features):
        if bag_ends[k] == bag_ends[k + 1] and id_ends[k] != id_ends[k + 1]:
            raise ValueError(f"{feature} has {id_ends[k + 1] - id_ends[k]} ids, but no bags for them.")
    if len(lengths) and int(lengths.min()) < 0:
        bag = int((lengths < 0).nonzero()[0])
        k = max(k for k, at in enumerate(bag_ends[:-1]) if at <= bag)
        raise ValueError(
            f"offsets of {features[k]} are not sorted, or beyond its {id_ends[k + 1] - id_ends[k]} ids, "
            f"after bag {bag - bag_ends[k]}."
        )


def _check_ids(features: Sequence[Feature], all_ids: Tensor, id_ends: Sequence[int]) -> None:
    ids = [all_ids[a:b] for a, b in pairwise(id_ends)]
    ends = [torch.stack(its.aminmax()) if len(its) else its.new_zeros(2) for its in ids]
    found = torch.stack(ends).tolist()
    outside = [k for k, (low, high) in enumerate(found) if low < 0 or high >= features[k].table.num_rows]
    if not outside:
        return
    k = outside[0]
    num_rows = features[k].table.num_rows
    at = int(((ids[k] < 0) | (ids[k] >= num_rows)).nonzero()[0])
    raise IndexError(
        f"{features[k]} got id {int(ids[k][at])} at position {at}, but has rows 0 to {num_rows - 1}; give it more "
        "rows, or map ids to rows first, as by `ids % num_rows`."
    )


def _without_padding(tables: Sequence[Table], batch: BagBatch) -> BagBatch:
    if all(table.padding_id is None for table in tables):
        return batch
    pads = torch.tensor([-1 if t.padding_id is None else t.padding_id for t in tables], device=batch.ids.device)
    return batch.where(batch.ids != batch.repeat(pads))
