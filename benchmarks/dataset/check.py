"""Checker of the data set: columns, counts, labels, references, hashes, splits, the card. Standard library and NumPy.

``python benchmarks/dataset/check.py``    says what is wrong, and how many measured rows are missing
"""

import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from dataset.card import CARD, counts
from dataset.schema import COLUMNS, FILES, FOLDER, KINDS, LINES, Row, plan_id_of, read, state
from dataset.tasks import HELD_OUT, TASKS, cells, measured_rows, split

STATUS = ("ok", "failed", "aborted")
LEAST_ROWS, LEAST_MEASURED, LEAST_COMPUTED = 10_000, 1600, 500
"""Rows in all; measured ones and ones that computed to the end, once every trial of the list has a line."""
LEAST_SLEPT, MOST_BYTES = 1056, 10_000_000
_FOLDERS = re.compile(r"(?<![\w.])(?:/(?:home|work|tmp|root|usr|mnt|opt|var|Users)/|[A-Z]:\\\\|~/)")


def faults(folder: Path = FOLDER, lines: Path = LINES) -> list[str]:
    """Return what is wrong with a data set, a sentence each; none if it is sound."""
    tables = {name: read(name, folder) for name in FILES}
    if missing := [name for name, rows in tables.items() if not rows and name != "computed"]:
        return [f"{folder.name} has no rows of {', '.join(missing)}; make them with benchmarks/dataset/build.py."]
    runs = [row for name in KINDS for row in tables[name]]
    found = [*_columns(tables), *_labels(tables), *_references(tables, runs), *_plans(tables["plans"])]
    found += [*_times(runs), *_folders(tables), *_splits(folder)]
    return found or [*_counts(tables, lines), *_card(tables, folder, lines)]


def _columns(tables: dict[str, list[Row]]) -> Iterator[str]:
    for name, rows in tables.items():
        wanted = set(COLUMNS["runs" if name in KINDS else name])
        for k, row in enumerate(rows):
            if set(row) != wanted:
                yield f"row {k} of {name} has other columns: {', '.join(sorted(set(row) ^ wanted))}."
                break


def _labels(tables: dict[str, list[Row]]) -> Iterator[str]:
    for name, kind in KINDS.items():
        if others := {row["kind"] for row in tables[name]} - {kind}:
            yield f"rows of {name} are labelled {', '.join(sorted(others))}, not {kind}."
        if others := {row["status"] for row in tables[name]} - set(STATUS):
            yield f"rows of {name} have the status {', '.join(sorted(others))}; there are {', '.join(STATUS)}."


def _references(tables: dict[str, list[Row]], runs: Sequence[Row]) -> Iterator[str]:
    if twice := [run for run, num in Counter(row["run"] for row in runs).items() if num > 1]:
        yield f"the run {twice[0]} comes twice."
    for table, key in (("models", "model"), ("clusters", "cluster"), ("plans", "plan"), ("sessions", "session")):
        known, used = [row[key] for row in tables[table]], {row[key] for row in runs}
        if set(known) != used or len(known) != len(used):
            yield f"{table} and runs do not name the same rows: {sorted(set(known) ^ used)[:3]}."


def _plans(plans: Sequence[Row]) -> Iterator[str]:
    for row in plans:
        text = json.dumps(json.loads(row["json"]), sort_keys=True, separators=(",", ":"))
        if row["json"] != text or row["plan"] != plan_id_of(text):
            yield f"the plan {row['plan']} is not the hash of its canonical JSON."


def _times(runs: Sequence[Row]) -> Iterator[str]:
    for row in runs:
        if (row["status"] == "ok") != bool(row["step_s"]):
            yield f"{row['run']} is {row['status']}, but its step takes {row['step_s']} s."
        elif (row["status"] == "ok") != (not row["reason"]):
            yield f"{row['run']} is {row['status']}, and its reason is {row['reason']!r}."
        elif row["kind"] == "simulated" and (row["blocks_s"] or row["step_s"] != row["simulated_s"]):
            yield f"{row['run']} is simulated, but has blocks or another time than the simulated one."
        elif row["blocks_s"] and abs(statistics.median(row["blocks_s"]) / row["step_s"] - 1) > 1e-4:
            yield f"{row['run']} has a step of {row['step_s']} s, which is not the median of its blocks."
        elif row["status"] == "ok" and row["kind"] != "simulated" and not row["blocks_s"]:
            yield f"{row['run']} was measured, but has no blocks."


def _folders(tables: dict[str, list[Row]]) -> Iterator[str]:
    for name in ("sessions", *KINDS):
        if local := _FOLDERS.search(json.dumps(tables[name])):
            yield f"a row of {name} names a local folder, {local[0]}"


def _splits(folder: Path) -> Iterator[str]:
    for kind in HELD_OUT:
        rows = measured_rows(kind, folder)
        for task in TASKS if rows else ():
            train, test = split(rows, task)
            for key, held in (("cluster", task != "model"), ("model", task != "cluster")):
                if held and {row[key] for row in train} & {row[key] for row in test}:
                    yield f"the task {task} of {kind} trains on a {key} that it tests on."
            if kind == "measured-slept" and not cells(test):
                yield f"the task {task} of {kind} tests no cell."


def _card(tables: dict[str, list[Row]], folder: Path, lines: Path) -> Iterator[str]:
    path = folder / CARD
    if not path.exists() or counts(tables, lines) not in path.read_text():
        yield f"{CARD} does not have the counts of the files; run benchmarks/dataset/build.py."


def _counts(tables: dict[str, list[Row]], lines: Path) -> Iterator[str]:
    num, (listed, done) = {name: len(tables[name]) for name in KINDS}, state(lines)
    if num["computed"] != done:
        yield f"{done} trials have a line, but {num['computed']} rows computed; run benchmarks/dataset/build.py."
    if num["slept"] < LEAST_SLEPT:
        yield f"{num['slept']} rows slept, but {LEAST_SLEPT} were measured in the first version."
    if sum(num.values()) - num["computed"] + listed < LEAST_ROWS:
        yield f"there are {sum(num.values())} rows, which cannot come to {LEAST_ROWS}."
    if done == listed:
        ended = sum(row["status"] == "ok" for row in tables["computed"])
        if num["slept"] + num["computed"] < LEAST_MEASURED or ended < LEAST_COMPUTED or sum(num.values()) < LEAST_ROWS:
            yield f"{num}, {ended} computed to the end: fewer than {LEAST_MEASURED} measured or {LEAST_COMPUTED}."


def size_of(folder: Path = FOLDER) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def summary(folder: Path = FOLDER, lines: Path = LINES) -> str:
    """Return the counts, and what is missing."""
    listed, done = state(lines)
    num = {kind: len(read(name, folder)) for name, kind in KINDS.items()}
    counts = ", ".join(f"{count} {kind}" for kind, count in num.items())
    return f"{sum(num.values())} rows: {counts}. {done} of {listed} trials are measured, {listed - done} are missing."


if __name__ == "__main__":
    wrong = faults()
    print("\n".join(wrong) or f"{summary()} {size_of() / 1e6:.1f} MB. Nothing is wrong.")
    sys.exit(bool(wrong))
