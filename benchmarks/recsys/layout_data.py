"""The data that layouts are measured on, and predicted for."""

from functools import cache
from typing import Any

from layout_plans import POOLINGS, ROWS, Frame

from pliant_bench.clicks.generator import Clicks


@cache
def _clicks(data: str, skew: float, seed: int) -> Clicks:
    return Clicks(num_rows=ROWS, bag_sizes=POOLINGS[data], exponent=skew, exponent_jitter=0.0, seed=seed)


def clicks_of(job: dict[str, Any]) -> Clicks:
    """Return what a job, or a line that it left, was measured on."""
    return _clicks(job["data"], job["skew"], job["seed"])


def frame_of(job: dict[str, Any]) -> Frame:
    """Return what its layouts have in common."""
    return Frame(
        num_ranks=job["hosts"] * job["ranks_per_host"],
        ranks_per_host=job["ranks_per_host"],
        batch=job["batch"],
        frequencies=clicks_of(job).frequencies(),
        poolings=POOLINGS[job["data"]],
    )
