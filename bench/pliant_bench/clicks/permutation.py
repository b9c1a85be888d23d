"""Arithmetic on row ids: numbers that look random, and bijections of a table's rows. No array of a table's size."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.hashing import hashed

__all__ = ["Permutation", "uniform"]


def uniform(ids: npt.NDArray[np.int64], seed: int = 0) -> npt.NDArray[np.float64]:
    """Hash ids (k,) to numbers (k,) in [0, 1)."""
    return (hashed(ids, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Permutation:
    """A bijection of 0 .. size - 1, chosen by a key: odd multiplications and shifts on the next power of two, walked
    along its cycle until it falls below the size (Black and Rogaway, 2002); at most two walks are expected.
    """

    size: int
    key: int = 0

    def __call__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the images (k,) of places (k,)."""
        found = self._once(places.astype(np.uint64))
        while (outside := np.flatnonzero(found >= self.size)).size:
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        bits = max(1, (self.size - 1).bit_length())
        mask, half = np.uint64(2**bits - 1), np.uint64(max(1, bits // 2))
        for multiplier, offset in self._rounds:
            x = (x * multiplier + offset) & mask
            x ^= x >> half
        return x

    @cached_property
    def _rounds(self) -> list[tuple[np.uint64, np.uint64]]:
        words = hashed(np.arange(6, dtype=np.int64), self.key)
        return [(words[k] | np.uint64(1), words[k + 3]) for k in range(3)]
