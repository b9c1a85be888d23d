"""The rows that a rank owns of one group, and the gradients that have come for them."""

import torch
from torch import Tensor

from pliant.recsys.groups import Group
from pliant.recsys.optimizers import RowRule, TableRows
from pliant.recsys.requests import Contribution, Request, summed
from pliant.recsys.segments import Room
from pliant.spec.embedding import RowOptimizer

__all__ = ["Shard"]


class Shard:
    """Answers requests, and applies the gradients of a step to each row once."""

    def __init__(self, group: Group, rank: int, kind: RowOptimizer, device: torch.device) -> None:
        self.group = group
        self.spans = group.spans(rank)
        self.rows = TableRows(group.num_slots[rank], group.dim, kind, device)
        self._came: list[Contribution] = []
        self._rooms = Room(device), Room(device)

    @property
    def num_waiting(self) -> int:
        """Contributions that `apply` has not used yet."""
        return len(self._came)

    @property
    def waiting_nbytes(self) -> int:
        """Bytes of their vectors and requests."""
        return sum(c.vectors.nbytes + sum(part.nbytes for part in c.request.parts) for c in self._came)

    @property
    def room_nbytes(self) -> int:
        """Bytes kept for sums of gradients."""
        return sum(room.nbytes for room in self._rooms)

    def answer(self, request: Request) -> Tensor:
        """Return the vectors asked for, float32 (num vectors, dim)."""
        return request.answer(self.rows.weights)

    def take(self, request: Request, vectors: Tensor) -> None:
        """Keep the gradients of a request's vectors until `apply`; they are added in the order in which they came."""
        self._came.append(Contribution(request=request, vectors=vectors))

    def apply(self, rule: RowRule, lr: float, divisor: int) -> int:
        """Sum what came, divide, and update each row once; return how many rows it were."""
        came = [one for one in self._came if len(one.request.slots)]
        self._came = []
        if not came:
            return 0
        slots, gradients = summed(came, self._rooms, distinct=self.group.distinct and not self.group.pools)
        if divisor > 1:
            gradients.div_(divisor)
        self.rows.update(slots, gradients, rule, lr)
        return len(slots)
