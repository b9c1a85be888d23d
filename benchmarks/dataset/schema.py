"""Files and columns of the data set's second version, and how they are read and written. Standard library alone."""

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = [
    "COLUMNS",
    "FILES",
    "FOLDER",
    "KINDS",
    "LINES",
    "LIST",
    "SLEPT_FROM",
    "Row",
    "plan_id_of",
    "read",
    "state",
    "write",
]

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results"
FOLDER = RESULTS / "dataset_v2"
LINES = RESULTS / "dataset_v2_lines_2core.jsonl"
"""Lines of `measure.py`, from which the rows that computed are made."""
LIST = Path(__file__).with_name("trials_seed1.jsonl")
"""List of measured trials, committed before the first was run."""
SLEPT_FROM = RESULTS / "dataset_2core_2026-11-29"
"""First version, whose rows are carried over."""

FILES = {
    "models": "models.jsonl.gz",
    "clusters": "clusters.jsonl.gz",
    "plans": "plans.jsonl.gz",
    "sessions": "sessions.jsonl.gz",
    "slept": "runs-measured-slept.jsonl.gz",
    "computed": "runs-measured-computed.jsonl.gz",
    "simulated": "runs-simulated.jsonl.gz",
}
"""Name -> file. The last three have the same columns, those of a run."""
KINDS = {"slept": "measured-slept", "computed": "measured-computed", "simulated": "simulated"}
"""File of runs -> the kind of all of its rows."""

_TIMES = {
    "step_s": "s; median of blocks_s; null where the run came to no end",
    "blocks_s": "s a step in each block, a block being one period of the plan, mean over ranks; empty if simulated",
    "num_steps": "steps that were timed",
    "period": "steps after which the plan begins anew",
    "compute_s": "s; step of the slowest rank without communication",
    "exposed_s": "s a step in which computing was done and the exchange was not, largest rank",
    "codec_s": "s a step of exchanges that was not spent waiting for the network, largest rank",
    "sent_bytes": "bytes a step that the busiest rank sends",
    "simulated_s": "s; step that the simulator as given predicts; null where it cannot",
    "simulated_parts": "shares of that step: computing, wire, latency, the rest; empty where it cannot",
}
COLUMNS: dict[str, dict[str, str]] = {
    "models": {
        "model": "name and hash of its tensors",
        "family": "name without size",
        "size_share": "elements over those of the whole model, where it was shrunk",
        "num_bytes": "bytes of its parameters",
        "tensors": "in the order in which gradients are ready: name, shape, dtype, layer",
    },
    "clusters": {
        "cluster": "name and hash",
        "num_ranks": "on all hosts",
        "num_hosts": "hosts with a link of their own",
        "slow_share": "compute speed of the last host over that of the others; 0: all are alike",
        "pairs": "whether some pairs of hosts have links of their own",
        "topology": "Topology of Pliant as an object: hosts, links between pairs, racks, CPUs",
    },
    "plans": {
        "plan": "first 16 hexadecimal digits of the SHA-256 of `json`",
        "family": "types of the nodes that exchange, with codecs, joined by +",
        "hybrid": "whether parameters are exchanged in more than one way, those that are spared apart",
        "json": "SyncPlan of Pliant, as canonical JSON: sorted keys, no spaces, no name",
    },
    "sessions": {
        "session": "one stay of the ranks in a cell",
        "began": "UTC",
        "machine": "CPU, software, and commit where it was noted",
        "forward_s": "s, median over ranks, as observed without exchanges; as assumed where computing slept",
        "backward_s": "likewise",
        "optimizer_s": "likewise; 0 where it was not told apart",
        "ready_s": "s from the start of backward at which each tensor's gradient is ready, in the order of `tensors`",
        "links_wrong": "sentences on links that were not what was asked for",
    },
    "runs": {
        "run": "name of the row",
        "kind": "measured-slept, measured-computed or simulated",
        "status": "ok, failed, or aborted (given up because it was slow)",
        "reason": "why it is not ok",
        "origin": "control, named, builder, sample, hybrid, repeat, or fault (made to fail)",
        "name": "text of the grammar, or name of a builder",
        "session": "row of sessions; empty if simulated",
        "model": "row of models",
        "cluster": "row of clusters",
        "plan": "row of plans",
        "optimizer": "SGD or AdamW, with momentum",
        **_TIMES,
        "load": "processes that were running or waiting, at the end; null: simulated",
        "seed": "of the list or of the generator that the row comes from",
        "version": "commit or day that measured it, or the simulator's version and overheads",
    },
}
"""Table -> column -> meaning with unit."""


def plan_id_of(text: str) -> str:
    """Return the key of a plan."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(name: str, folder: Path = FOLDER) -> list[Row]:
    """Return the rows of a file, none where it is not there."""
    path = folder / FILES[name]
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write(name: str, rows: Iterable[Row], folder: Path = FOLDER) -> None:
    """Write the rows of a file, the same bytes for the same rows."""
    text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{FILES[name]}"
    beside.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    beside.replace(folder / FILES[name])


def state(lines: Path = LINES) -> tuple[int, int]:
    """Return how many trials the list has, and how many of them have a line."""
    listed = {(t["cell"], t["number"]) for t in map(json.loads, LIST.read_text().splitlines()) if t["kind"] == "trial"}
    done: set[tuple[str, int]] = set()
    for text in lines.read_text().splitlines() if lines.exists() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the last words of a process that was killed
        if line["kind"] == "trial":
            done.add((line["cell"], line["number"]))
    return len(listed), len(listed & done)
