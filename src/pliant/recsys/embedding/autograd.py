"""Borders to torch: autograd, where answers go out forward and gradients come in backward, and the compiler."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from pliant.recsys.embedding.channel import PairwiseChannel
from pliant.recsys.embedding.round_trip import LookupRoundTrip

__all__ = ["SendBack", "lookup_outputs", "uncompiled"]

F = TypeVar("F", bound=Callable[..., Any])

SendBack = Callable[[LookupRoundTrip, Sequence[Tensor]], None]


def uncompiled(method: F) -> F:
    """Return a method that is never compiled, nor what it calls: a graph ends before it, and another begins after."""
    why = "ShardedEmbeddingBag exchanges rows between ranks; compile without fullgraph=True, or only the dense part."
    disable: Any = torch.compiler.disable
    return disable(method, reason=why)


class _Pooled(torch.autograd.Function):
    """All groups at once. `anchor` wants a gradient, so that autograd comes by; it gets none."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, trip: LookupRoundTrip, channel: PairwiseChannel, send_back: SendBack
    ) -> tuple[Tensor, ...]:
        del anchor
        ctx.trip, ctx.send_back = trip, send_back
        return tuple(trip.answers(channel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.no_grad():
            ctx.send_back(ctx.trip, gradients)
        return None, None, None, None


def lookup_outputs(
    anchor: Tensor, trip: LookupRoundTrip, channel: PairwiseChannel, send_back: SendBack, num_tables: int
) -> list[Tensor]:
    """Return float32 (bags, dim) for each feature, in the order of tables; columns of one are put side by side."""
    pooled: Any = _Pooled.apply(anchor, trip, channel, send_back)
    found: list[list[tuple[int, Tensor]]] = [[] for _ in range(num_tables)]
    groups = [*trip.local.groups, *trip.local.replicated]
    for group, lookup, matrix in zip(groups, [*trip.lookups, *trip.here], pooled, strict=True):
        ends = lookup.batch.bag_ends
        sizes = [b - a for a, b in pairwise(ends)]
        for piece, part in zip(group.pieces, matrix.split(sizes), strict=True):
            found[piece.index].append((piece.first_column, part))
    for its in found:
        its.sort(key=lambda part: part[0])
    whole = [its[0][1] if len(its) == 1 else torch.cat([part for _, part in its], 1) for its in found]
    return [part for its, num in zip(whole, trip.batch.of_features, strict=True) for part in _apart(its, num)]


def _apart(bags: Tensor, num: Sequence[int]) -> Sequence[Tensor]:
    return [bags] if len(num) == 1 else bags.split(list(num))
