"""Division of work and messages: rules that executor and simulator share."""

import math
from collections.abc import Sequence

__all__ = ["WEIGHT_BUCKET_NUMEL", "factor_shape", "weight_buckets"]

WEIGHT_BUCKET_NUMEL = 25 << 18
"""Weights are exchanged in buckets of 25 MB of float32, as large as DDP's own by default."""


def factor_shape(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Return the shape (r, m) of the right factor of a parameter seen as (n, m), or None if factors do not pay."""
    if len(shape) < 2:
        return None
    n = shape[0]
    m = math.prod(shape) // max(n, 1)
    r = min(rank, n, m)
    return (r, m) if (n + m) * r < n * m else None


def weight_buckets(numels: Sequence[int], num_fragments: int) -> list[tuple[int, list[int]]]:
    """Return (fragment, indices of its tensors) for each bucket in which weights are exchanged.

    Args:
        numels: Elements of each tensor, in the model's order.
        num_fragments: Parts of the model that are exchanged at different steps.

    """
    fragments: list[list[int]] = [[] for _ in range(num_fragments)]
    held = [0] * num_fragments
    for k, numel in enumerate(numels):
        lightest = held.index(min(held))  # spread over the depth of the model, alike in size
        fragments[lightest].append(k)
        held[lightest] += numel
    buckets: list[tuple[int, list[int]]] = []
    for fragment, indices in enumerate(fragments):
        room = -1  # so that a first tensor without elements begins a bucket too
        for k in indices:
            if numels[k] > room:
                buckets.append((fragment, []))
                room = max(WEIGHT_BUCKET_NUMEL, numels[k])
            buckets[-1][1].append(k)
            room -= numels[k]
    return buckets
