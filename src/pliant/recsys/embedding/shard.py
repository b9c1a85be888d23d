"""The owner's side of a lookup: rows of a group, requests for them, and the gradients that come back."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.recsys.embedding.groups import Group
from pliant.recsys.embedding.optimizers import RowRule, TableRows
from pliant.recsys.embedding.segments import ScratchBuffer, segments, sum_rows
from pliant.spec.embedding import RowOptimizer

__all__ = ["Request", "RequestGradients", "TableShard", "sum_gradients"]


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
            weights=torch.empty(sizes[0], dtype=torch.float32, device=device) if weighted else None,
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
        """Return the vectors asked for, float32 (num vectors, dim), out of weights (slots, dim).

        Raises:
            ValueError: Bags do not divide the ids: a request comes from another rank.

        """
        if self.lengths is None:
            return weights.index_select(0, self.slots)
        ends = self.lengths.cumsum(0)
        if len(ends) and (int(self.lengths.min()) < 0 or int(ends[-1]) != len(self.slots)):
            raise ValueError(
                f"a rank asks for {len(self.slots)} rows in bags of {int(ends[-1])} in all; the request was damaged on "
                "its way."
            )
        starts = (ends - self.lengths).to(torch.int32)
        return sum_rows(weights, self.slots, starts, self.weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestGradients:
    """Gradients of one request's vectors, float32 (num vectors, dim)."""

    request: Request
    vectors: Tensor


def sum_gradients(
    contributions: Sequence[RequestGradients], scratch: tuple[ScratchBuffer, ScratchBuffer], *, distinct: bool
) -> tuple[Tensor, Tensor]:
    """Return slots, int64 (num,), and their gradients, float32 (num, dim): first inside each contribution, in order of
    its ids, weights times vectors, then over contributions, in their order.

    Args:
        contributions: At least one.
        scratch: For the sums, until the next call.
        distinct: That no contribution has a slot twice: the first part is done.

    """
    inside = [None if distinct else segments(c.request.slots.long(), ascending=False) for c in contributions]
    slots = [c.request.slots.long() if its is None else its.keys for c, its in zip(contributions, inside, strict=True)]
    over = segments(torch.cat(slots), ascending=False)
    sums = scratch[0].zeros(len(over.keys), contributions[0].vectors.shape[1])
    for one, its, index in zip(contributions, inside, over.index.split([len(s) for s in slots]), strict=True):
        vectors = one.vectors
        if its is not None:
            lengths = None if one.request.lengths is None else one.request.lengths.long()
            vectors = its.sum(vectors, lengths, one.request.weights, scratch=scratch[1])
        kernels_for(sums).add_rows(sums, index, vectors)
    return over.keys, sums


class TableShard:
    """Answers requests, and applies the gradients of a step to each row once."""

    def __init__(self, group: Group, rank: int, kind: RowOptimizer, device: torch.device) -> None:
        self.group = group
        self.spans = group.spans(rank)
        self.rows = TableRows(group.num_slots[rank], group.dim, kind, device)
        self._came: list[RequestGradients] = []
        self._scratch = ScratchBuffer(device), ScratchBuffer(device)

    @property
    def waiting_nbytes(self) -> int:
        """Bytes of their vectors and requests."""
        return sum(c.vectors.nbytes + sum(part.nbytes for part in c.request.parts) for c in self._came)

    @property
    def scratch_nbytes(self) -> int:
        """Bytes kept for sums of gradients."""
        return sum(scratch.nbytes for scratch in self._scratch)

    def answer(self, request: Request) -> Tensor:
        """Return the vectors asked for, float32 (num vectors, dim)."""
        return request.answer(self.rows.weights)

    def take(self, request: Request, vectors: Tensor) -> None:
        """Keep the gradients of a request's vectors until `apply`; they are added in the order in which they came."""
        self._came.append(RequestGradients(request=request, vectors=vectors))

    def apply(self, rule: RowRule, lr: float, divisor: int) -> None:
        """Sum the gradients that came, divide, and update each row once."""
        came = [one for one in self._came if len(one.request.slots)]
        self._came = []
        if not came:
            return
        slots, gradients = sum_gradients(came, self._scratch, distinct=self.group.distinct and not self.group.pools)
        if divisor > 1:
            gradients.div_(divisor)
        self.rows.update(slots, gradients, rule, lr)
