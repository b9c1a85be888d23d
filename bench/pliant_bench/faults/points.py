"""Faults of a series: rank, step and kind, drawn from a seed, so that another run has the same. No torch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pliant_bench.harness.names import bare_name
from pliant_bench.harness.resumed import records_before
from pliant_bench.harness.setup import Setup

__all__ = ["ELASTIC_ARMS", "Point", "is_elastic", "points_left", "points_of", "records_of"]

ELASTIC_ARMS = (
    "gossip",
    "choco",
    "dcd",
    "local_sgd",
    "diloco",
    "streaming_diloco",
    "sparse_loco",
    "pulse_loco",
    "des_loc",
    "mt_dao",
    "local_momentum",
    "async_average",
    "delayed_nesterov",
    "no_loco",
    "decoupled_diloco",
    "halos",
)
"""Arms whose runs go on without a lost rank; all others are to end on every rank."""

_LATEST = 0.6
"""Share of the steps after which nobody is struck any more, so that those who come back find a training."""
_STOPPED = 1 / 3
_PAUSES_S = (0.3, 5.0)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One loss in one training."""

    number: int
    arm: str
    victim: int
    signal: Literal["KILL", "STOP"]
    """SIGKILL breaks all connections; SIGSTOP breaks none, and is what a host that hangs looks like."""
    moment: float
    """In steps of the victim; the fraction is within a step."""
    back_s: float
    """Pause after which the victim is started again, or, if stopped, goes on; 0: never."""
    rank_hosts_store: bool
    """Whether rank 0 hosts the store, as it does without torchrun, and not who started the ranks."""


def is_elastic(arm: str) -> bool:
    """Return whether an arm's run is made to go on."""
    return bare_name(arm) in ELASTIC_ARMS


def points_of(arms: Sequence[str], num: int, num_ranks: int, steps: int, seed: int = 0) -> tuple[Point, ...]:
    """Return the points: every other one on an arm that goes on, if there are any, and each arm in turn.

    A point depends on its number, but not on how many there are.
    """
    elastic = [arm for arm in arms if is_elastic(arm)]
    others = [arm for arm in arms if not is_elastic(arm)]
    points: list[Point] = []
    for number in range(num):
        half, odd = divmod(number, 2)
        chosen, turn = (others if odd else elastic, half) if elastic and others else (elastic or others, number)
        points.append(_point(number, chosen[turn % len(chosen)], num_ranks, steps, seed))
    return tuple(points)


def _point(number: int, arm: str, num_ranks: int, steps: int, seed: int) -> Point:
    draw = random.Random(f"{seed} {number}")  # noqa: S311  nothing is kept secret by it
    stopped, returns, hosted_by_rank = draw.random() < _STOPPED, draw.random() < 0.5, draw.random() < 0.5
    pause_s = round(draw.uniform(*_PAUSES_S), 2)
    return Point(
        number=number,
        arm=arm,
        victim=draw.randrange(num_ranks),
        signal="STOP" if stopped else "KILL",
        moment=round(draw.uniform(0, _LATEST * steps), 3),
        back_s=pause_s if returns and is_elastic(arm) else 0.0,
        rank_hosts_store=hosted_by_rank and not is_elastic(arm),  # the loss of its host is the end of an elastic run
    )


def records_of(path: Path | None, setup: Setup, num_hosts: int) -> list[dict[str, Any]]:
    """Return the records that a file of an earlier run has. Raises ValueError if that run was another one."""
    alike = ("mode", "train_steps", "batch", "bucket_mb")
    return records_before(path, setup, num_hosts, alike=alike, what="points")


def points_left(points: Sequence[Point], before: Sequence[dict[str, Any]]) -> list[Point]:
    """Return the points that have no record."""
    done = {r["number"] for r in before if r["kind"] == "kill"}
    return [point for point in points if point.number not in done]
