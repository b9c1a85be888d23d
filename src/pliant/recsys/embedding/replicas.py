"""Rows that are on all ranks: their gradients gather, and are summed over ranks once in so many steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.comm.base import Comm
from pliant.recsys.embedding.groups import PieceSpan
from pliant.recsys.embedding.optimizers import RowRule, TableRows
from pliant.spec.embedding import RowOptimizer

__all__ = ["Replicas"]


class Replicas:
    """Rows of one dim that every rank has: whole tables, and room for the hot rows of others.

    Their values change only in `synchronize`, alike on every rank.
    """

    def __init__(self, spans: Sequence[PieceSpan], dim: int, kind: RowOptimizer, device: torch.device) -> None:
        num = spans[-1].slot + spans[-1].num
        self.spans = tuple(spans)
        self.dim = dim
        self.rows = TableRows(num, dim, kind, device)
        self.gradients = torch.zeros(num, dim, dtype=torch.float32, device=device)
        self.touched = torch.zeros(num, dtype=torch.uint8, device=device)

    def add(self, slots: Tensor, gradients: Tensor) -> None:
        """Keep gradients, float32 (num, dim), of rows at these slots, int64; none is there twice."""
        kernels_for(gradients).add_rows(self.gradients, slots.to(torch.int32), gradients)
        self.touched[slots] = 1

    def synchronize(self, comm: Comm, rule: RowRule, lr: float, divisor: int) -> None:
        """Sum gradients over ranks, divide, and apply them once.

        Two all-reduces: one byte for each row (has anybody touched it?), then the gradients of those that somebody
        has; the latter is left out where nobody has touched any.
        """
        if comm.size > 1:
            comm.all_reduce(self.touched, "max").wait()
        slots = self.touched.nonzero().view(-1)
        if len(slots):
            summed = self.gradients.index_select(0, slots)  # (touched, dim)
            if comm.size > 1:
                comm.all_reduce(summed).wait()
            if divisor > 1:
                summed.div_(divisor)
            self.rows.update(slots, summed, rule, lr)
            self.gradients.index_fill_(0, slots, 0.0)
            self.touched.zero_()
