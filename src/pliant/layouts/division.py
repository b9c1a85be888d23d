"""Division of work and messages: rules that executor and simulator share."""

import math
from collections.abc import Sequence

__all__ = ["WEIGHT_BUCKET_NUMEL", "assign_owners", "factor_shape", "weight_buckets"]

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


def assign_owners(numels: Sequence[int], bandwidths: Sequence[float]) -> tuple[int, ...]:
    """Return the owner of each parameter: the largest first, each to the rank that would finish it soonest.

    Graham's longest-processing-time rule (SIAM J. Appl. Math. 17, 1969), for machines of different speed: with equal
    bandwidths the fullest rank has at most 4/3 of its load in the best placement. A parameter is never cut, so that
    optimizers of whole matrices (Muon, LAMB, Adafactor) work as they are. Equal arguments give equal owners on every
    rank: ties go to the lower index.

    Args:
        numels: Elements of each parameter.
        bandwidths: Bandwidth of each rank's network, in any unit; positive.

    """
    if not bandwidths or min(bandwidths) <= 0:
        raise ValueError(f"the bandwidths of the owners are {tuple(bandwidths)}, but each must be positive.")
    held = [0] * len(bandwidths)
    owners = [0] * len(numels)
    for k in sorted(range(len(numels)), key=lambda k: (-numels[k], k)):
        owners[k] = min(range(len(held)), key=lambda r: ((held[r] + numels[k]) / bandwidths[r], r))
        held[owners[k]] += numels[k]
    return tuple(owners)
