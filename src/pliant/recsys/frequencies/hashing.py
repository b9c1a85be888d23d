"""Hash of row ids by arithmetic, the same on every machine."""

import numpy as np
import numpy.typing as npt

__all__ = ["hashed"]

_GOLDEN = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1


def hashed(ids: npt.NDArray[np.int64], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Hash ids (k,) to uint64 (k,): the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), a bijection of 64
    bits.
    """
    x = ids.astype(np.uint64) + np.uint64((seed + 1) * _GOLDEN & _ALL)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
