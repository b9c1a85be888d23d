"""Fit Zipf's or Mandelbrot's law to counted rows by maximum likelihood, with a confidence interval and a word of
warning.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.rows import RowFrequencies
from pliant.recsys.frequencies.zipf_cells import cell_masses

__all__ = ["ZipfFit", "fit_zipf"]

Floats = npt.NDArray[np.float64]
_DEEP = 0.2
_CELL = 2**0.25
_Z95 = 1.959964
_BAD = 0.02
_KNOWN = 100


@dataclass(frozen=True, kw_only=True)
class ZipfFit:
    """A law p(rank) ~ (rank + shift)^-exponent over all rows of a table."""

    exponent: float
    low: float
    """Lower end of the 95 % confidence interval of the exponent, if the law is right."""
    high: float
    shift: float
    """0 for Zipf's law; the plateau of Mandelbrot's law"""
    num_ranks: int
    """Ranks that were fitted one by one or in cells; those after them counted as one cell."""
    distance: float
    """Largest difference between the share of lookups up to a rank, as counted and by the law; over ranks up to
    lookups / 100, since deeper ones, known from few lookups each, look unequal even where they are not."""
    fits: bool
    """Whether the distance is at most 0.02 plus what chance does to a log of this length."""

    def __str__(self) -> str:
        law = f"(rank + {self.shift:.3g})" if self.shift else "rank"
        said = f"p ~ {law}^-{self.exponent:.4g}, 95 % between {self.low:.4g} and {self.high:.4g}"
        if self.fits:
            return f"{said}; shares of lookups are within {self.distance:.3f} of the law."
        return (
            f"{said}, but the fit is bad: shares of lookups differ from the law by up to {self.distance:.3f}, so use "
            "the counted frequencies instead of the exponent."
        )


def fit_zipf(table: RowFrequencies, *, plateau: bool = False) -> ZipfFit:
    """Fit the exponent, and with `plateau` the shift, to counted rows.

    Maximum likelihood of the multinomial law over cells of ranks (Clauset, Shalizi and Newman, 2009, on why not to fit
    a line). Ranks are known only from the counts themselves, which makes a law seem steeper where counts are small; so
    only the first 0.2 sqrt(lookups) ranks are told apart, and the rest of the table is one cell. The interval is from
    the curvature of the likelihood. It says how well the law's exponent is known if the law is right; whether it is,
    says `distance`.

    Raises:
        ValueError: The frequencies are of a stated law, or there is too little to fit.

    """
    total = table.num_lookups
    depth = min(int(_DEEP * math.sqrt(total)), table.head_ids.size, table.num_rows)
    if total <= 0 or depth < 3 or table.num_rows < 3:
        raise ValueError(
            f"table {table.name} has {total:.0f} counted lookups of {table.head_ids.size} listed rows; a fit needs at "
            "least 225 lookups, 3 rows, and counted, not stated, frequencies."
        )
    edges = _edges(depth, table.num_rows)
    listed = np.concatenate([[0.0], np.cumsum(table.head_p * total)])
    counts = np.diff(listed[np.minimum(edges, depth)])
    if edges[-1] > depth:
        counts[-1] = total - listed[depth]

    def loss(exponent: float, shift: float) -> float:
        return -float(counts @ np.log(np.maximum(cell_masses(edges, exponent, shift), 1e-300)))

    exponent, shift = _best(loss, plateau, depth)
    low, high = _interval(loss, exponent, shift, plateau)
    distance = _distance(table, exponent, shift)
    return ZipfFit(
        exponent=exponent,
        low=low,
        high=high,
        shift=shift,
        num_ranks=depth,
        distance=distance,
        fits=distance <= _BAD + 1.63 / math.sqrt(total),
    )


def _edges(depth: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Return edges of cells: single ranks first, then growing by a fifth up to `depth`, then all others."""
    num_cells = max(1, math.ceil(math.log(depth) / math.log(_CELL)))
    inner = np.round(np.geomspace(1, depth, num_cells + 1)).astype(np.int64)
    return np.unique(np.concatenate([[0], inner, [num_rows]]))


def _best(loss: Callable[[float, float], float], plateau: bool, depth: int) -> tuple[float, float]:
    if not plateau:
        return _lowest(lambda s: loss(s, 0.0), 0.0, 5.0), 0.0

    def exponent_of(shift: float) -> float:
        return _lowest(lambda s: loss(s, shift), 0.0, 5.0)

    # log(1 + shift), since plateaus differ by factors
    grown = _lowest(lambda u: loss(exponent_of(math.expm1(u)), math.expm1(u)), 0.0, math.log1p(depth))
    shift = math.expm1(grown)
    return exponent_of(shift), shift


def _lowest(loss: Callable[[float], float], low: float, high: float) -> float:
    """Golden section: the losses here have one valley."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-7:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(right)
    return (low + high) / 2


def _interval(
    loss: Callable[[float, float], float], exponent: float, shift: float, plateau: bool
) -> tuple[float, float]:
    """Return exponent -+ 1.96 standard errors, from second differences; the shift's uncertainty widens it."""
    h, g = 1e-3, 1e-2 * (1 + shift)
    s, q = max(exponent, h), max(shift, g)
    curvature = (loss(s + h, shift) - 2 * loss(s, shift) + loss(s - h, shift)) / h**2
    if plateau:
        along = (loss(s, q + g) - 2 * loss(s, q) + loss(s, q - g)) / g**2
        across = (loss(s + h, q + g) - loss(s + h, q - g) - loss(s - h, q + g) + loss(s - h, q - g)) / (4 * h * g)
        curvature -= across**2 / max(along, 1e-300)
    error = _Z95 / math.sqrt(max(curvature, 1e-12))
    return max(0.0, exponent - error), exponent + error


def _distance(table: RowFrequencies, exponent: float, shift: float) -> float:
    """Compare shares of lookups up to each edge of the counted bins, as deep as counts can tell ranks apart."""
    p, rows = table.bins
    bounds, shares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (rows, p * rows))
    edges = np.unique(np.round(bounds).astype(np.int64))
    edges = edges[edges < min(table.num_rows, table.num_lookups / _KNOWN)]
    law = np.cumsum(cell_masses(np.append(edges, table.num_rows), exponent, shift))
    return float(np.abs(np.interp(edges[1:], bounds, shares) - law[:-1]).max())
