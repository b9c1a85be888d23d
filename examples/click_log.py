"""Click logs in memory, in the order of time: batches of samples, and tables made of columns of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pliant.recsys.frequencies.columns import MISSING, Columns, hash_rows, number, read_table


@dataclass(frozen=True, kw_only=True, eq=False)
class ClickBatch:
    """Samples of a click log: a batch, or all of a log."""

    dense: Tensor
    """float32 (samples, features)"""
    ids: tuple[Tensor, ...]
    """per table int64 (lookups,): rows, bag after bag"""
    offsets: tuple[Tensor, ...]
    """per table int64 (samples,): where each bag begins, as nn.EmbeddingBag takes it"""
    label: Tensor
    """float32 (samples,): 1 clicked, 0 not"""

    @property
    def num_samples(self) -> int:
        """Samples in the batch."""
        return self.label.numel()

    def take(self, chosen: Tensor) -> "ClickBatch":
        """Return the samples (k,) with these numbers, int64, in this order."""
        bags = [_bags(i, o, chosen) for i, o in zip(self.ids, self.offsets, strict=True)]
        return ClickBatch(
            dense=self.dense[chosen],
            ids=tuple(ids for ids, _ in bags),
            offsets=tuple(offsets for _, offsets in bags),
            label=self.label[chosen],
        )

    def part(self, first: int, last: int) -> "ClickBatch":
        """Return the samples first ... last - 1, without copying rows."""
        ids: list[Tensor] = []
        offsets: list[Tensor] = []
        for i, o in zip(self.ids, self.offsets, strict=True):
            begin = int(o[first]) if first < o.numel() else i.numel()
            end = int(o[last]) if last < o.numel() else i.numel()
            ids.append(i[begin:end])
            offsets.append(o[first:last] - begin)
        return ClickBatch(
            dense=self.dense[first:last], ids=tuple(ids), offsets=tuple(offsets), label=self.label[first:last]
        )


def _bags(ids: Tensor, offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    sizes = torch.diff(offsets, append=offsets.new_tensor([ids.numel()]))[chosen]
    begins = torch.cumsum(sizes, 0) - sizes
    within = torch.arange(int(sizes.sum())) - torch.repeat_interleave(begins, sizes)
    return ids[torch.repeat_interleave(offsets[chosen], sizes) + within], begins


@dataclass(frozen=True, kw_only=True, eq=False)
class ClickLog:
    """A whole log in memory, in the order of time."""

    names: tuple[str, ...]
    """of the tables"""
    num_rows: tuple[int, ...]
    samples: ClickBatch

    def split(self, train_share: float = 0.8) -> tuple[ClickBatch, ClickBatch]:
        """Return the earlier samples, to train on, and the later ones, to test on: none of these is older than any of
        those.

        Raises:
            ValueError: The share leaves one side empty.

        """
        first = round(train_share * self.samples.num_samples)
        if not 0 < first < self.samples.num_samples:
            raise ValueError(f"a share of {train_share} of {self.samples.num_samples} samples leaves one side empty.")
        return self.samples.part(0, first), self.samples.part(first, self.samples.num_samples)

    @classmethod
    def of_columns(
        cls,
        *,
        flat: Columns,
        dense: Sequence[npt.NDArray[np.float64]],
        label: npt.NDArray[np.bool_],
        num_rows: Mapping[str, int] | None = None,
        many: Columns | None = None,
    ) -> "ClickLog":
        """Make a log of columns (samples,) that are sorted by time already.

        Args:
            flat: Categories, one a sample, by name of table.
            dense: Numbers; standardized by the earlier 80 %.
            label: Whether each sample was clicked.
            num_rows: Tables whose categories are hashed, into so many rows; others get a row per value.
            many: Tables whose cells are words with blanks between: the ids of a bag.

        """
        hashes = num_rows or {}
        found = {
            name: (hash_rows(values, hashes[name], t), hashes[name]) if name in hashes else first_sight(values)
            for t, (name, values) in enumerate(flat.items())
        }
        starts = np.arange(label.size)
        ids, offsets = [ids for ids, _ in found.values()], [starts] * len(found)
        sizes = [rows for _, rows in found.values()]
        for values in (many or {}).values():
            rows, begins, size = bags(values)
            ids.append(rows)
            offsets.append(begins)
            sizes.append(size)
        return cls(
            names=(*flat, *(many or {})),
            num_rows=tuple(sizes),
            samples=ClickBatch(
                dense=_standardized(dense, label.size),
                ids=tuple(map(torch.from_numpy, ids)),
                offsets=tuple(map(torch.from_numpy, offsets)),
                label=torch.from_numpy(label.astype(np.float32)),
            ),
        )


def load_table(
    path: str | Path,
    *,
    label: str,
    categories: Sequence[str],
    dense: Sequence[str] = (),
    time: str | None = None,
    num_rows: Mapping[str, int] | None = None,
    separator: str = ",",
) -> ClickLog:
    """Load a CSV or Parquet file (.parquet, which needs pyarrow) with named columns.

    The label's column holds 0 and 1. A category in `num_rows` is hashed into so many rows, any other gets a row per
    value, in the order of first sight. Samples are sorted by the column `time`, if named, else taken as they come.
    Dense columns are standardized by the earlier 80 %; missing numbers become the mean, missing categories row 0.

    Raises:
        ValueError: A column is missing or a value is not what it should be.

    """
    wanted = [label, *categories, *dense, *([time] if time else [])]
    columns = read_table(path, wanted, separator=separator)
    if unknown := sorted(set(num_rows or {}) - set(categories)):
        raise ValueError(f"num_rows names {unknown[0]!r}, but the categories are {', '.join(categories)}.")
    clicked = number(columns, label)
    if not np.isin(clicked, (0, 1)).all():
        raise ValueError(
            f"column {label!r} of {path} must hold 0 and 1, but has {clicked[~np.isin(clicked, (0, 1))][0]}."
        )
    order = np.argsort(number(columns, time), kind="stable") if time else np.arange(clicked.size)
    return ClickLog.of_columns(
        flat={name: columns[name][order] for name in categories},
        dense=[number(columns, name)[order] for name in dense],
        label=clicked[order] > 0,
        num_rows=num_rows or {},
    )


def _standardized(dense: Sequence[npt.NDArray[np.float64]], num: int) -> torch.Tensor:
    """Return float32 (num, features) by mean and deviation of the earlier 80 %; what is missing becomes the mean."""
    columns: list[npt.NDArray[np.float64]] = [np.zeros((num, 0))]
    for values in dense:
        earlier = values[: max(1, num * 4 // 5)]
        known = earlier[np.isfinite(earlier)]
        mean, deviation = (float(known.mean()), float(known.std())) if known.size else (0.0, 1.0)
        columns.append(np.where(np.isfinite(values), (values - mean) / (deviation or 1.0), 0.0)[:, None])
    return torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))


def first_sight(values: npt.NDArray[np.str_]) -> tuple[npt.NDArray[np.int64], int]:
    """Return rows int64 (samples,), in the order in which values are first seen from 1 on, and how many rows that
    makes.

    Row 0 is for what is missing.
    """
    row = dict.fromkeys(MISSING, 0)
    next_row = 1
    for value in values.tolist():
        if row.setdefault(value, next_row) == next_row:
            next_row += 1
    return np.fromiter(map(row.__getitem__, values.tolist()), np.int64, values.size), next_row


def bags(values: npt.NDArray[np.str_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return rows int64 (lookups,), where each bag begins int64 (samples,), and the number of rows, of words with
    blanks between them; no words make an empty bag.
    """
    words = [value.split() for value in values.tolist()]
    sizes = np.array([len(bag) for bag in words])
    flat = np.array([word for bag in words for word in bag], dtype=np.str_)
    rows, num_rows = first_sight(flat) if flat.size else (np.zeros(0, np.int64), 1)
    return rows, np.cumsum(sizes) - sizes, num_rows
