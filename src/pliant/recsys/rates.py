"""What work takes on a machine: seconds of each thing that is counted, given, measured or fitted to steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Rates", "fitted", "nonnegative_least_squares"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of work, and of what messages cost beside the links of a topology. Defaults are of one CPU core."""

    id_s: float = 6e-8
    """Of an id that is made distinct: sorted, and found again."""
    row_s: float = 6e-8
    """Of a row gathered from a table: a jump in memory."""
    number_s: float = 6e-10
    """Of a number pooled, or added to a gradient."""
    coded_s: float = 4e-10
    """Of a number encoded or decoded, where a layout has fewer than 32 bits."""
    updated_s: float = 2e-9
    """Of a number of a row that the optimizer updates."""
    piece_s: float = 2e-5
    """Of a piece of a table in each step, however little is asked of it."""
    message_s: float = 1.5e-4
    """Of a rank, for each message that it sends or receives."""
    step_s: float = 1e-3
    """Of a step with embeddings, whatever is in it."""
    wire_factor: float = 1.05
    """Time on a link over bytes / rate."""
    memory_bytes_per_s: float = 3e9
    """Between ranks of one host."""

    def __post_init__(self) -> None:
        times = [getattr(self, f.name) for f in fields(self) if f.name.endswith("_s") and "bytes" not in f.name]
        if min(times) < 0 or self.wire_factor < 1 or self.memory_bytes_per_s <= 0:
            raise ValueError(f"{self} cannot be: times are at least 0, the factor at least 1, the rate above 0.")

    @property
    def counts_s(self) -> Floats:
        """Seconds (counts,) of each of `traffic.COUNTS`."""
        return np.array([self.id_s, self.row_s, self.number_s, self.coded_s, self.updated_s, self.piece_s])


_FITTED = ("id_s", "row_s", "number_s", "coded_s", "updated_s", "piece_s", "message_s", "step_s")


def fitted(features: Sequence[Floats], rest_s: Sequence[float], start: Rates) -> Rates:
    """Return rates that explain measured steps best, in relative squared error.

    Args:
        features: Of each step (8,): the six counts of the busiest rank of each stage, summed, then messages, then 1: as
            `StepCost.features` has them.
        rest_s: Of each step: what was measured, less links, delays and the dense part.
        start: Where the steps say nothing about a rate, it stays; a rate that no step uses cannot be learned.

    Raises:
        ValueError: There are no steps, or not as many times.

    """
    if not len(features) or len(features) != len(rest_s):
        raise ValueError(f"{len(features)} steps have features, {len(rest_s)} times; there must be as many, and some.")
    A, b = np.asarray(features, np.float64), np.maximum(np.asarray(rest_s, np.float64), 1e-6)
    known = np.array([getattr(start, name) for name in _FITTED])
    used = A.any(axis=0)
    # Relative errors, and columns in units of what they were believed to take; a weak pull towards that belief settles
    # what the steps cannot tell apart.
    scale = np.where(known > 0, known, 1e-9)
    weighted = (A * scale)[:, used] / b[:, None]
    pull = 1e-2 * np.eye(int(used.sum()))
    found = nonnegative_least_squares(
        np.concatenate([weighted, pull]), np.concatenate([np.ones(len(b)), 1e-2 * (known / scale)[used]])
    )
    values = known.copy()
    values[used] = found * scale[used]
    return replace(start, **dict(zip(_FITTED, values.tolist(), strict=True)))


def nonnegative_least_squares(A: Floats, b: Floats) -> Floats:
    """Return x >= 0 with the least |A x - b|: Lawson and Hanson's active set (1974).

    Args:
        A: (rows, columns)
        b: (rows,)

    """
    num = A.shape[1]
    x, passive = np.zeros(num), np.zeros(num, np.bool_)
    for _ in range(3 * num + 10):
        gradient = A.T @ (b - A @ x)
        if passive.all() or gradient[~passive].max() <= 1e-12 * max(1.0, float(np.abs(A.T @ b).max())):
            break
        passive[np.where(passive, -np.inf, gradient).argmax()] = True
        while True:
            z = np.zeros(num)
            z[passive] = np.linalg.lstsq(A[:, passive], b, rcond=None)[0]
            if not passive.any() or z[passive].min() > 0:
                break
            # As far towards z as all stay at least 0; those that get there leave.
            low = passive & (z <= 0)
            step = float((x[low] / (x[low] - z[low] + 1e-300)).min())
            x = x + step * (z - x)
            passive &= x > 1e-15
        x = z
    return x
