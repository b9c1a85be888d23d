"""Carries out what is left of the points, tells how each went, and keeps the records."""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from pliant_bench.faults.inject import inject_all
from pliant_bench.faults.points import points_left, points_of
from pliant_bench.faults.tables import is_expected
from pliant_bench.harness.setup import Setup

__all__ = ["run_points"]

Record = dict[str, Any]


def run_points(
    setup: Setup, num_ranks: int, before: Sequence[Record], keep: Callable[[list[Record]], None]
) -> list[Record]:
    """Return the records of the points that `before` lacks. `keep` gets all of them after each.

    Raises:
        ValueError: There are fewer than two ranks, so that nobody would be left.

    """
    if num_ranks < 2:
        raise ValueError(f"--hosts is {num_ranks}, but when one is lost others must be there; give 2 or more.")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    points = points_of(setup.arms, setup.num_points, num_ranks, setup.train_steps)
    left = points_left(points, before)
    records: list[Record] = []
    start_s = time.monotonic()

    def take(record: Record) -> None:
        records.append({**record, "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())})
        print(f"{time.monotonic() - start_s:5.0f} s  {_describe(record, setup.num_points)}", flush=True)
        keep(records)

    inject_all(setup, num_ranks, left, before, take)
    return records


def _describe(record: Record, num_points: int) -> str:
    if record["kind"] == "undisturbed":
        return f"{record['arm']} undisturbed: {record['outcome']}, accuracy {record['accuracy']}"
    after_s = record["ended_s"] if record["outcome"] == "ended" else record["next_step_s"]
    after = "" if after_s is None else f" after {after_s:.1f} s"
    back = f", and rank {record['victim']} {record['back']}" if record["back"] else ""
    right = "" if is_expected(record) else "  <- not as it should be"
    return (
        f"{record['number'] + 1} of {num_points}: {record['arm']}, SIG{record['signal']} of rank {record['victim']} at "
        f"step {record['moment']:.1f}: {record['outcome']}{after}{back}{right}"
    )
