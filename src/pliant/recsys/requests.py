"""The owner's side of a lookup: what a rank asks for, and the gradients that come back for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.recsys.segments import Room, segments, sum_rows

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
        """Parts of a request that travel."""
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


def summed(contributions: Sequence[Contribution], rooms: tuple[Room, Room], *, distinct: bool) -> tuple[Tensor, Tensor]:
    """Return slots, int64 (num,), and their gradients, float32 (num, dim): first inside each contribution, in order of
    its ids, weights times vectors, then over contributions, in their order.

    Args:
        contributions: At least one.
        rooms: For the sums, until the next call.
        distinct: That no contribution has a slot twice: the first part is done.

    """
    inside = [None if distinct else segments(c.request.slots.long(), ascending=False) for c in contributions]
    slots = [c.request.slots.long() if its is None else its.keys for c, its in zip(contributions, inside, strict=True)]
    over = segments(torch.cat(slots), ascending=False)
    sums = rooms[0].zeros(len(over.keys), contributions[0].vectors.shape[1])
    for one, its, index in zip(contributions, inside, over.index.split([len(s) for s in slots]), strict=True):
        vectors = one.vectors
        if its is not None:
            lengths = None if one.request.lengths is None else one.request.lengths.long()
            vectors = its.sum(vectors, lengths, one.request.weights, room=rooms[1])
        kernels_for(sums).add_rows(sums, index, vectors)
    return over.keys, sums
