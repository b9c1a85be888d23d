"""Measure what a machine takes for the work of embedding tables: the real operations, for a few seconds."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from pliant.recsys.embedding.optimizers import RowRule, TableRows
from pliant.recsys.embedding.segments import segments, sum_rows
from pliant.recsys.placement.rates import Rates, fit_rates
from pliant.recsys.placement.traffic import COUNTS

__all__ = ["measure_rates"]

_SIZES = ((1 << 10, 16), (1 << 12, 64), (1 << 14, 32), (1 << 15, 64))
"""Ids and columns"""
_NUM_ROWS = 1 << 18
"""Of the table: more than caches hold, and little enough for any machine."""
_MORE_FEATURES = 3
"""Lookups, messages and steps: not measured here."""


def measure_rates(start: Rates | None = None, *, limit_s: float = 4.0) -> Rates:
    """Return rates of this machine, with as many threads as torch has; what lookups, messages and steps cost is
    not measured.

    Rates whose work cannot be told apart are split as in `start`. Runs no longer than about `limit_s`.

    Args:
        start: What stays where nothing is measured: lookups, messages, steps, links.
        limit_s: Seconds for all measurements.

    """
    start = start if start is not None else Rates()
    generator = torch.Generator().manual_seed(0)
    jobs = [job for num, dim in _SIZES for job in _jobs(num, dim, generator)]
    features = [
        np.array([counts.get(name, 0.0) for name in COUNTS] + [0.0] * _MORE_FEATURES, np.float64) for counts, _ in jobs
    ]
    taken_s = [_shortest_s(job, limit_s / len(jobs)) for _, job in jobs]
    return fit_rates(features, [0.0] * len(features), taken_s, start)


def _jobs(num: int, dim: int, generator: torch.Generator) -> list[tuple[Mapping[str, float], Callable[[], object]]]:
    """Return what is counted and done, for so many ids and columns."""
    rows = TableRows(_NUM_ROWS, dim, "rowwise_adagrad", torch.device("cpu"))
    rule = RowRule(kind="rowwise_adagrad")
    ids = (torch.rand(num, generator=generator) ** 3 * _NUM_ROWS).long()  # (num,)
    alike = segments(ids)
    fetched, gradients = (torch.ones(n, dim, dtype=torch.float32) for n in (len(alike.keys), num))
    offsets = torch.arange(0, num, 4, dtype=alike.index.dtype)
    numbers = float(num * dim)

    return [
        ({"ids": num, "pieces": 1}, lambda: segments(ids)),
        ({"numbers": numbers, "pieces": 1}, lambda: sum_rows(fetched, alike.index, offsets)),
        ({"numbers": numbers, "pieces": 1}, lambda: alike.sum(gradients)),
        ({"rows": num, "numbers": numbers, "pieces": 1}, lambda: rows.weights.index_select(0, ids)),
        ({"coded": 2 * numbers, "pieces": 1}, lambda: gradients.to(torch.bfloat16).to(torch.float32)),
        ({"updated": float(fetched.numel()), "pieces": 1}, lambda: rows.update(alike.keys, fetched, rule, 0.01)),
    ]


def _shortest_s(job: Callable[[], object], limit_s: float) -> float:
    """Return the shortest time of a job, done as often as the limit allows, and at least three times."""
    shortest, end = float("inf"), time.perf_counter() + limit_s
    count = 0
    while count < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        job()
        shortest = min(shortest, time.perf_counter() - begin)
        count += 1
    return shortest
