"""The card of the data set: a page with the hub's header. Its counts are read from the files."""

import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from dataset.schema import COLUMNS, FILES, FOLDER, KINDS, LINES, Row, read, state
from dataset.tasks import HELD_OUT, results, table

_HEADER = """\
---
license: apache-2.0
pretty_name: "Pliant: plans of data-parallel training, and their step times"
language: [en]
size_categories: [{size}]
task_categories: [tabular-regression]
tags: [distributed-training, performance-modelling, gradient-compression, communication, pytorch]
configs:
{configs}
---
"""
_INTRODUCTION = """\
# Plans of data-parallel training, and their step times

Each row is a plan (what ranks exchange, with whom, in how many bits, when), on a model and a cluster, with the time of
a training step. Rows are measured or simulated, and each says which.

| kind | what it is |
|---|---|
| `measured-slept` | emulated hosts, real sockets and codecs, gradients of a model's shapes; computing slept |
| `measured-computed` | the same hosts, and a real forward pass, backward pass and optimizer step of a small model |
| `simulated` | the simulator of Pliant, uncalibrated; a prediction, never to be tested on |
"""
_REST = """\
## How it was made

- `measured-slept`: `pliant collect`, 2026-11-29, the first version of this data set, with momentum SGD.
- `measured-computed`: `benchmarks/dataset/measure.py`, from the committed list `trials_seed1.jsonl`. Its clusters have
  uneven hosts, uneven pairs, a slow host, racks, losses, and up to 8 ranks; its models up to 30 MB. Some trials are
  made to fail, and a plan that is much slower than the control is aborted.
- `simulated`: `benchmarks/dataset/build.py --simulated`, from a seed.

A schedule that is "auto" was found for the cluster before the trial: a run goes around the ring until it has seen
more sums than a trial has. `simulated_s` is the simulator's time of every row, from the cluster as asked for and the
session's observed times. It is uncalibrated, and of the version that the simulated rows name.

## Limits

- All hosts share one machine of two cores, so codecs and computing of all ranks compete. `load` says how busy it was.
- A slow host pauses before each backward pass. Ranks at paces of their own (`ParameterServer`, free gossip,
  asynchronous averages) are timed as the mean over ranks of each rank's step;
  rows that slept, where one host is slow and ranks wait for others, as the slowest rank.
- Large models of slept rows are shrunk (`size_share`), but delays and costs of messages are not.
- A failed or aborted run has no step time. It is not a run of time 0.
- Simulated rows hold the simulator's errors: train on them if you like, but test on measured rows alone.
- Step times say nothing of accuracy. What a plan costs in steps is in the library's documentation.

## Tasks

Three tasks are fixed in `tasks.py`: rank the plans, and predict their times, on clusters, models or both that are held
out. Scores are means over cells. `baselines.ipynb` and `python benchmarks/dataset/tasks.py` compute this table, with
NumPy alone.
"""
_CITATION = """\
## Citation

```bibtex
@misc{pliant_plans,
  title = {Plans of data-parallel training, and their step times},
  author = {{The Pliant developers}},
  year = {2026},
  note = {Data set of Pliant: data-parallel PyTorch training that bends to the network it has}
}
```

Licence: Apache-2.0. Models have random weights and data are made up: no personal data are in it.
"""
CARD = "README.md"
_SIZES = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))


def card(folder: Path = FOLDER, lines: Path = LINES) -> str:
    """Return the card of the files in a folder, as Markdown."""
    tables = {name: read(name, folder) for name in FILES}
    runs = [row for name in KINDS for row in tables[name]]
    size = next((name for most, name in _SIZES if len(runs) < most), "100K<n<1M")
    configs = [f"  - config_name: {name}\n    data_files: {file}" for name, file in FILES.items()]
    held = [f"- `{kind}`: clusters {', '.join(c)}; models {', '.join(m)}." for kind, (c, m) in HELD_OUT.items()]
    return "\n".join(
        [
            _HEADER.format(size=size, configs="\n".join(configs)),
            _INTRODUCTION,
            "## Rows\n",
            counts(tables, lines),
            _families(tables["plans"], runs),
            _REST,
            "\n".join(["Held out:", "", *held, ""]),
            table(results(folder)),
            _columns(tables),
            _CITATION,
        ]
    )


def counts(tables: dict[str, list[Row]], lines: Path) -> str:
    """Return the rows of each kind, and how many trials of the list are not measured yet."""
    runs, (listed, done) = [row for name in KINDS for row in tables[name]], state(lines)
    counted = Counter((row["kind"], row["status"]) for row in runs)
    of = {kind: [row for row in runs if row["kind"] == kind] for kind in KINDS.values()}
    table_lines = [
        "| kind | ok | failed | aborted | all | models | clusters | plans | SGD | AdamW |",
        f"|{'---|' * 10}",
    ]
    for kind, rows in of.items():
        figures = [counted[kind, status] for status in ("ok", "failed", "aborted")]
        figures += [len(rows), *(len({row[key] for row in rows}) for key in ("model", "cluster", "plan"))]
        figures += [sum(row["optimizer"] == name for row in rows) for name in ("SGD", "AdamW")]
        table_lines.append(f"| {kind} | {' | '.join(map(str, figures))} |")
    measured = len(runs) - len(of["simulated"])
    missing = f"{done} of the {listed} trials of the list are measured; {listed - done} are missing."
    return "\n".join([*table_lines, "", f"{len(runs)} rows, {measured} of them measured. {missing}\n"])


def _families(plans: list[Row], runs: list[Row]) -> str:
    """Return the rows of each kind by the first node of a plan; hybrids apart."""
    node = {row["plan"]: "hybrids" if row["hybrid"] else row["family"].partition(":")[0] for row in plans}
    counted = Counter((node[row["plan"]], row["kind"]) for row in runs)
    lines = [f"| nodes that exchange | {' | '.join(KINDS.values())} |", f"|{'---|' * (1 + len(KINDS))}"]
    for name in sorted(set(node.values())):
        lines.append(f"| {name} | {' | '.join(str(counted[name, kind]) for kind in KINDS.values())} |")
    return "\n".join([*lines, ""])


def _columns(tables: dict[str, list[Row]]) -> str:
    lines = ["## Files", "", "JSON lines, compressed by gzip. Times are in seconds, sizes in bytes."]
    for name, columns in COLUMNS.items():
        files = [FILES[each] for each in ((*KINDS,) if name == "runs" else (name,))]
        lines += [
            "",
            f"### {name}: {', '.join(f'`{file}`' for file in files)}",
            "",
            "| column | meaning |",
            "|---|---|",
        ]
        lines += [f"| `{column}` | {meaning} |" for column, meaning in columns.items()]
    return "\n".join([*lines, ""])
