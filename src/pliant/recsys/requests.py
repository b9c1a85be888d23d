"""The owner's side of a lookup: what a rank asks for, and the gradients that come back for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.recsys.segments import in_order, segments, sum_rows

__all__ = ["Contribution", "Request", "summed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Rows that one rank asks of an owner.

    Attributes:
        slots: At the owner, int32 (num_ids,).
        lengths: Where the owner pools, the ids of each bag, int32 (num_bags,).
        weights: Of ids, where there are any, float32 (num_ids,).

    """

    slots: Tensor
    lengths: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def empty(cls, sizes: Sequence[int], device: torch.device, *, weighted: bool) -> "Request":
        """Return one to be received: sizes are the number of ids and, where the owner pools, of bags."""
        return cls(
            slots=torch.empty(sizes[0], dtype=torch.int32, device=device),
            lengths=torch.empty(sizes[1], dtype=torch.int32, device=device) if len(sizes) > 1 else None,
            weights=torch.empty(sizes[0], device=device) if weighted else None,
        )

    @property
    def parts(self) -> list[Tensor]:
        """What travels."""
        return [part for part in (self.slots, self.lengths, self.weights) if part is not None]

    @property
    def sizes(self) -> list[int]:
        """Numbers of ids and, where the owner pools, of bags."""
        return [len(self.slots)] if self.lengths is None else [len(self.slots), len(self.lengths)]

    def chosen(self, index: Tensor | None) -> "Request":
        """Return the request for some of the vectors, int64 (num,), where the owner does not pool; None: for all."""
        return self if index is None else Request(slots=self.slots[index])

    def answer(self, weights: Tensor) -> Tensor:
        """Return the vectors asked for, float32 (num vectors, dim), out of weights (slots, dim)."""
        if self.lengths is None:
            return weights.index_select(0, self.slots)
        starts = self.lengths.cumsum(0, dtype=torch.int32) - self.lengths
        return sum_rows(weights, self.slots, starts, self.weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class Contribution:
    """Gradients of one request's vectors, float32 (num vectors, dim)."""

    request: Request
    vectors: Tensor


def summed(contributions: Sequence[Contribution], *, distinct: bool) -> tuple[Tensor, Tensor] | None:
    """Return slots, int64 (num,), and their gradients, float32 (num, dim): first inside each contribution, in order of
    its ids, then over contributions, in their order. None: there are none.

    With `distinct`, no contribution has a slot twice, and the first part is done.
    """
    contributions = [c for c in contributions if len(c.request.slots)]
    if not contributions:
        return None
    vectors = torch.cat([c.vectors for c in contributions])
    slots = torch.cat([c.request.slots for c in contributions]).long()
    if distinct:
        alike = segments(slots)
        return alike.keys, alike.sum(vectors)
    num = torch.tensor([len(c.request.slots) for c in contributions], device=slots.device)
    whose = torch.arange(len(num), device=slots.device).repeat_interleave(num)
    inside = segments(slots * len(num) + whose)
    index = weights = None
    if contributions[0].request.lengths is not None:
        lengths = torch.cat([c.request.lengths for c in contributions if c.request.lengths is not None])
        index = torch.arange(len(lengths), device=slots.device).repeat_interleave(lengths)
    if contributions[0].request.weights is not None:
        weights = torch.cat([c.request.weights for c in contributions if c.request.weights is not None])
    vectors = inside.sum(vectors, index, weights)
    over = in_order(inside.keys // len(num))
    return over.keys, vectors if len(over.keys) == len(vectors) else over.sum(vectors)
