"""Predictions of today for the sums that `meshes.py` has recorded, from the links that its ranks had probed.

``python benchmarks/schedules/meshes_again.py LINES.jsonl --md F.md``

Nothing is measured and nothing fitted. A turn of an arm is some sums, each after a barrier, for which links were
silent: its predicted time is the pause. Before the first of a turn it is longer by the turn of the ring, if that was
before it, since a ring leaves most links alone. Beside that stands what the return ways of all rounds would add: Gloo
sends a message once the receiver has told that it waits, and where both begin a round at the same time that takes a
delay more.
"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from schedules.meshes_rank import BYTES, MOST_CALLS, WINDOW_S
from sharded.journal import show
from tasc.accuracy_book import read_records

from pliant.netmodel import Links, Overheads
from pliant.schedules import candidates
from pliant.schedules.dense import dense_candidates, dense_merged, ring_s
from pliant.spec import Schedule, Topology, from_json

NAMES = ("ring", "family", "chosen")
_FLAG_BYTES = 4.0
"""Of a barrier, which is a sum of one number."""


def num_calls(arm: dict[str, Any]) -> int:
    """Return the sums of a turn, as `meshes_rank.timed` makes them."""
    return max(1, min(MOST_CALLS, math.ceil(WINDOW_S / arm["predicted_s"])))


def predictions(record: dict[str, Any], kind: str) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each arm, the predicted seconds, and those of the return ways; medians over turns."""
    topology, num_bytes = from_json(Topology, json.dumps(record["probed"])), BYTES[kind]
    told = {arm["arm"]: arm for arm in record["arms"] if arm["kind"] == kind}
    barrier_s = ring_s(_FLAG_BYTES, topology)
    around_s = num_calls(told["ring"]) * (barrier_s + statistics.median(told["ring"]["seconds"]))
    yield "ring", ring_s(num_bytes, topology, replace(Overheads(), pause_s=barrier_s)), 0.0  # counts those ways
    num, delays_s = topology.num_ranks, Links(topology).delays_s
    merged = dense_merged(Schedule(name="", num_ranks=num, num_blocks=8 * num, rounds=()), num_bytes)
    for name, find in (
        ("family", lambda overheads: candidates(merged, topology, overheads)),
        ("chosen", lambda overheads: dense_candidates(num_bytes, topology, overheads)),
    ):
        arm, calls, turns_s = told[name], num_calls(told[name]), list[float]()
        soon, later = (
            next(each for each in find(replace(Overheads(), pause_s=pause_s)) if each.name == arm["name"])
            for pause_s in (barrier_s, barrier_s + around_s)
        )
        for turn in range(len(arm["seconds"])):
            order = NAMES[turn % 3 :] + NAMES[: turn % 3]
            before = (NAMES[(turn - 1) % 3 :] + NAMES[: (turn - 1) % 3] + order)[2 + order.index(name)]
            after_ring = before == "ring" and turn < len(told["ring"]["seconds"]) + (order[0] == name)
            first_s = later.cost.total_s if after_ring else soon.cost.total_s
            turns_s.append((first_s + (calls - 1) * soon.cost.total_s) / calls)
        back_s = [max(delays_s[move.target, move.source] for move in moves) for moves in soon.schedule.rounds]
        yield name, statistics.median(turns_s), float(sum(back_s))


def table(records: list[dict[str, Any]], command: str) -> str:
    """Return the page."""
    rows = ["# Predictions of recorded sums, again", "", f"`{command}`", ""]
    rows += ["| sums | arm | measured | then, over measured | now | with return ways |", "|---|---|---|---|---|---|"]
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        for kind in BYTES:
            told = {each["arm"]: each for each in record["arms"] if each["kind"] == kind}
            for arm, now_s, back_s in predictions(record, kind):
                took_s = statistics.median(told[arm]["seconds"])
                ratios = [each_s / took_s for each_s in (told[arm]["predicted_s"], now_s, now_s + back_s)]
                where = "meshes" if record["mesh"].startswith("mesh ") else "worlds"
                for model, ratio in zip(("then", "now", "with return ways"), ratios, strict=True):
                    errors[where, model].append(abs(ratio - 1))
                shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
                rows.append(f"| {record['mesh']}, {kind} | {arm} | {took_s:.3f} s | {shown} |")
    rows += ["", "| errors | cells | median | 90th percentile |", "|---|---|---|---|"]
    for (where, model), found in errors.items():
        rows.append(f"| {where}, {model} | {len(found)} | {np.median(found):.0%} | {np.quantile(found, 0.9):.0%} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="of `meshes.py`")
    parser.add_argument("--md", type=Path, help="the table")
    arguments = parser.parse_args()
    show(table(read_records(arguments.lines), " ".join(sys.argv)), arguments.md)


if __name__ == "__main__":
    main()
