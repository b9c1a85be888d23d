"""Zipf's law over the rows of a table, in cells of ranks, so that 40 million rows need a thousand numbers."""

import numpy as np
import numpy.typing as npt

__all__ = ["cell_masses", "log_edges"]

_EXACT = 1024
_CELLS_PER_DECADE = 200


def log_edges(num_rows: int, num_exact: int) -> npt.NDArray[np.int64]:
    """Return edges (cells + 1,) of cells of ranks: `num_exact` cells of one rank, then cells that grow by 1.2 %.

    Cell j holds the ranks edges[j] + 1 ... edges[j + 1].
    """
    first = min(num_rows, num_exact)
    decades = np.log10(num_rows / max(first, 1))
    later = np.geomspace(max(first, 1), num_rows, int(np.ceil(decades * _CELLS_PER_DECADE)) + 1)
    return np.unique(np.concatenate([np.arange(first + 1), np.round(later).astype(np.int64), [num_rows]]))


def cell_masses(edges: npt.NDArray[np.int64], exponent: float, shift: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the share (cells,) of all lookups that falls on each cell of ranks, of probability ~ (rank +
    shift)^-exponent.

    The ranks up to 1024 are summed, those beyond integrated from half a rank before to half a rank after (error of a
    row's probability: exponent^2 / rank^2 / 12, below 1e-6). Shift 0 is Zipf's law, above 0 Mandelbrot's with a
    plateau.
    """
    ranks = np.arange(1, _EXACT + 1)
    sums = np.concatenate([[0.0], np.cumsum((ranks + shift) ** -exponent)])
    summed = np.diff(sums[np.minimum(edges, _EXACT)])
    bounds = np.maximum(edges, _EXACT) + 0.5 + shift
    growth, power = np.diff(np.log(bounds)), 1 - exponent
    integral = growth if abs(power) < 1e-12 else bounds[:-1] ** power * np.expm1(power * growth) / power
    masses = summed + integral
    return masses / masses.sum()
