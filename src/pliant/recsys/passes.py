"""Autograd functions of the sharded lookup: answers go out forward, gradients come in backward."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pliant.recsys.exchange import Talk
from pliant.recsys.turn import Turn

__all__ = ["SendBack", "outputs"]

SendBack = Callable[[Turn, Sequence[Tensor]], None]


class _Pooled(torch.autograd.Function):
    """All groups at once. `anchor` wants a gradient, so that autograd comes by; it gets none."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, turn: Turn, talk: Talk, send_back: SendBack) -> tuple[Tensor, ...]:
        del anchor
        ctx.turn, ctx.send_back = turn, send_back
        return tuple(turn.answers(talk))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.no_grad():
            ctx.send_back(ctx.turn, gradients)
        return None, None, None, None


def outputs(anchor: Tensor, turn: Turn, talk: Talk, send_back: SendBack, num_tables: int) -> list[Tensor]:
    """Return float32 (bags, dim) for each feature, in the order of tables; columns of one are put side by side."""
    pooled: Any = _Pooled.apply(anchor, turn, talk, send_back)
    found: list[list[tuple[int, Tensor]]] = [[] for _ in range(num_tables)]
    groups = [*turn.held.groups, *turn.held.locals]
    for group, lookup, matrix in zip(groups, [*turn.lookups, *turn.here], pooled, strict=True):
        ends = lookup.batch.bag_ends
        sizes = [b - a for a, b in pairwise(ends)]
        for piece, part in zip(group.pieces, matrix.split(sizes), strict=True):
            found[piece.index].append((piece.first_column, part))
    for its in found:
        its.sort(key=lambda part: part[0])
    whole = [its[0][1] if len(its) == 1 else torch.cat([part for _, part in its], 1) for its in found]
    return [part for its, num in zip(whole, turn.batch.of_features, strict=True) for part in _apart(its, num)]


def _apart(bags: Tensor, num: Sequence[int]) -> Sequence[Tensor]:
    return [bags] if len(num) == 1 else bags.split(list(num))
