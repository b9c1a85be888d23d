"""A batch of clicks, and how good a prediction of it is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["ClickBatch", "auc"]


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


def auc(scores: Tensor | npt.NDArray[np.float64], labels: Tensor | npt.NDArray[np.float64]) -> float:
    """Return the area under the ROC curve: P(a clicked sample scores higher than one that is not), ties one half.

    Scores (samples,) in any unit; labels (samples,) of 0 and 1, or probabilities, with which the result is the AUC that
    is expected over labels drawn from them.

    Raises:
        ValueError: A score is not a number, or the samples are all clicked or all not.

    """
    score, label = (np.asarray(x, dtype=np.float64).ravel() for x in (scores, labels))
    if score.size != label.size or not np.isfinite(score).all():
        raise ValueError(f"{score.size} finite scores are needed for {label.size} labels; found others, or NaN.")
    if not 0 < label.sum() < label.size:
        raise ValueError("an AUC needs samples that were clicked and samples that were not; all are of one kind here.")
    _, place = np.unique(score, return_inverse=True)
    clicked, not_clicked = np.bincount(place, label), np.bincount(place, 1 - label)
    below = np.cumsum(not_clicked) - not_clicked
    return float(clicked @ (below + not_clicked / 2) / (clicked.sum() * not_clicked.sum()))
