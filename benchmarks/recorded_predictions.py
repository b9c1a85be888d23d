"""Errors of this version's predictions on steps that were recorded before, with nothing measured again.

``python benchmarks/recorded_predictions.py``

Reads lines of `sharded/steps.py` and `house/predictions.py`: each has a measured step, and the probed network, machine
and workload that the prediction is made from. Run it on two commits to compare them.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent / "sharded"))
sys.path.append(str(Path(__file__).parent / "house"))

from predict import predict
from predicted import predicted

RESULTS = Path(__file__).parent / "results"
SHARDED = (
    "sharded_steps_2core_2026-11-25",
    "sharded_steps_2core_2026-11-25c",
    "sharded_steps_batch32_2core_2026-11-25",
)
HOUSE = "house_predictions_2core_2026-11-25"
WITHIN = 0.15


def lines_of(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the sessions of a file by their names, and its other lines."""
    lines = [json.loads(text) for text in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    sessions = {line["session"]: line for line in lines if line["kind"] == "session"}
    return sessions, [line for line in lines if line["kind"] != "session"]


def sharded_errors(name: str) -> Iterator[tuple[str, float]]:
    """Yield group and relative error of each setting with a plan: of the median over rounds."""
    sessions, turns = lines_of(name)
    steps_s: dict[tuple[str, ...], dict[int, float]] = {}
    session_of: dict[tuple[str, ...], str] = {}
    for turn in turns:
        steps_s.setdefault((turn["rate"], turn["model"], turn["setting"]), {})[turn["round"]] = turn["step_s"]
        session_of[turn["rate"], turn["model"]] = turn["session"]
    for (rate, model, setting), by_round in steps_s.items():
        session = sessions[session_of[rate, model]]
        if (plan := session["plans"].get(setting)) is not None:
            says = predicted(session, plan).step_s
            yield f"{name}: {model}, {rate}", says / statistics.median(by_round.values()) - 1


def house_errors(name: str) -> Iterator[tuple[str, float]]:
    """Yield group and relative error of each arm that ended well: of the median over turns."""
    sessions, arms = lines_of(name)
    for arm in arms:
        if arm["status"] == "ok":
            measured_s = statistics.median(mean for mean, _, _ in arm["samples"])
            group = f"{name}: {arm['model']}, {arm['rate']}"
            yield group, predict(sessions[arm["session"]] | arm)["step_s"] / measured_s - 1


def row(group: str, errors: list[float]) -> str:
    """Return a row of the table."""
    absolute = np.abs(errors)
    middle, most, worst = np.quantile(absolute, [0.5, 0.9, 1.0])
    cells = [group, str(len(errors)), f"{middle:.1%}", f"{most:.1%}", f"{worst:.1%}", f"{np.median(errors):+.1%}"]
    return f"| {' | '.join([*cells, str(int((absolute <= WITHIN).sum()))])} |"


def main() -> None:
    print("| recorded steps | plans | median | 90th percentile | largest | median of the signed | within 15 % |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, found in [*((name, sharded_errors(name)) for name in SHARDED), (HOUSE, house_errors(HOUSE))]:
        groups: dict[str, list[float]] = {name: []}
        for group, error in found:
            groups[name].append(error)
            groups.setdefault(group, []).append(error)
        for group, errors in groups.items():
            print(row(group, errors))


if __name__ == "__main__":
    main()
