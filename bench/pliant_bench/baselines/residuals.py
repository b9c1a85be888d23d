"""Parts that all of these share: how many elements a ratio is, and error feedback that an overflow does not enter."""

import math

from torch import Tensor

from pliant.codecs import all_finite

__all__ = ["count_of", "add_residual"]


def count_of(ratio: float, numel: int) -> int:
    """Return k = ceil(ratio numel), at least 1 and at most numel. Raises ValueError for a ratio that is no share."""
    if not 0 < ratio <= 1:
        raise ValueError(f"the ratio is {ratio}, but it is a share of the elements: more than 0, at most 1.")
    return min(numel, max(1, math.ceil(ratio * numel)))


def add_residual(g: Tensor, residual: Tensor) -> tuple[Tensor, bool]:
    """Return what to send of, (numel,), and whether it is finite: the residual, to which g was added, or g alone.

    A gradient that overflowed is sent, so that all ranks see it, but must not enter what is kept.
    """
    if all_finite(g):
        return residual.add_(g), True
    return g.clone(), False
