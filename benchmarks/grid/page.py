"""Time to accuracy over 16-bit DDP of every arm in every cell: tables in Markdown, and a page with plots.

    python benchmarks/grid/page.py --steps F.jsonl ... --curves F.jsonl ... [--free F.jsonl ...] \
        [--confirm F.jsonl ...] [--md F.md] [--html F.html] [--json F.json]

It joins the lines of `steps.py`, `curves.py` and `confirm.py`, as far as they are there; of two lines of one trial that
of the later file counts. --json writes the cells that differ in rate and delay alone as `pliant bench --grid` does, for
`benchmarks/draw_grid.py`.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from grid.job import KEY
from grid.join import TARGET, Curve, curves_of, entries
from grid.tables import Joined, markdown, tables
from grid.trials import read
from house.versions import machine
from tasc.accuracy_book import read_records

from pliant.cli.page import document, plot, require_plotly, table
from pliant.spec.files import write_atomically
from pliant_bench.tables.grid_figures import grid_figures
from pliant_bench.tables.winners import cell_rows, is_ours

Record = dict[str, Any]
INTRODUCTION = (
    "Steps were measured in each cell, steps to the target in trainings of three seeds, which do not depend on the "
    "network; arms at a free pace were trained in each cell. All arms with SGD have the learning rate at which "
    "16-bit DDP needs the fewest steps."
)


def lines(paths: Sequence[Path], *kinds: str) -> list[Record]:
    """Return the lines of some kinds, one a trial: that of the last file which has it."""
    found = [record for path in paths for record in read_records(path) if record["kind"] in kinds]
    return list({tuple(record.get(name) for name in KEY): record for record in found}.values())


def measured(records: list[Record]) -> str:
    """Return when lines were made, at which load of the machine, and from which commits."""
    if not records:
        return "none"
    times, loads = [record["at"] for record in records], [record["load"] for record in records]
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    return f"{min(times)} to {max(times)}, load {min(loads):g} to {max(loads):g}, commits {commits}"


def by_cell(records: list[Record]) -> dict[str, dict[str, Curve]]:
    """Return cell -> arm -> trainings."""
    names = dict.fromkeys(record["cell"] for record in records)
    return {name: curves_of([record for record in records if record["cell"] == name]) for name in names}


def files(given: argparse.Namespace) -> dict[str, tuple[Sequence[Path], tuple[str, ...]]]:
    """Return option -> its files, and the kinds of lines there."""
    kinds = {"steps": ("step",), "curves": ("rate", "curve"), "free": ("free",), "confirm": ("confirm",)}
    return {name: (getattr(given, name), mine) for name, mine in kinds.items()}


def joined(given: argparse.Namespace) -> Joined:
    """Read all files."""
    steps, free = lines(given.steps, "step"), by_cell(lines(given.free, "free"))
    curves = curves_of(lines(given.curves, "curve"))
    return Joined(
        cells=[cell["cell"] for cell in read("cell") if any(step["cell"] == cell["cell"] for step in steps)],
        steps=steps,
        curves=curves,
        free=free,
        confirmed=by_cell(lines(given.confirm, "confirm")),
        entries=entries(steps, curves, free),
    )


def as_bench(found: Joined) -> Record:
    """Return the cells of a rate and a round trip, as `pliant bench --grid --json` writes them."""
    records: list[Record] = []
    for name in found.cells:
        rate, trip, *special = name.split()
        mine = [step for step in found.steps if step["cell"] == name and "step_s" in step and step["number"] == 0]
        if special or not trip.endswith("ms") or "compute" not in [step["arm"] for step in mine]:
            continue
        arms = {step["arm"]: {"step_s": step["step_s"], "free": step["free"]} for step in mine}
        fields = {"model": "cnn", "rate": rate, "delay": f"{float(trip.removesuffix('ms')) / 2:g}ms", "slow_share": 0.0}
        records.append({"kind": "cell", "cell": name, **fields, "arms": arms, "links_wrong": mine[0]["links_wrong"]})
    trained = {arm: {"steps": curve.mean_steps} for arm, curve in found.curves.items()}
    return {"trained": trained, "records": records}


def page(found: Joined, facts: dict[str, str]) -> str:
    """Return the page: tables, and step time and time to the target over the rate."""
    bench = as_bench(found)
    rows = [
        replace(row, to_target_s=to_target_s(found, record["cell"]))
        for record in bench["records"]
        for row in cell_rows([equal_turns(record)], {})
    ]
    parts = [f"<p>{INTRODUCTION}</p>"]
    for title, note, head, cells in tables(found):
        parts += [f"<h2>{title}</h2>", table(head, cells, is_ours), f'<p class="note">{note}</p>']
    return document(f"The grid: time to {TARGET:.0%}", facts, [*parts, *map(plot, grid_figures(rows))])


def to_target_s(found: Joined, cell: str) -> dict[str, float]:
    """Return arm -> seconds to the target in a cell, of those that reach it."""
    mine = [entry for entry in found.entries.values() if entry.cell == cell]
    return {entry.arm: entry.to_target_s for entry in mine if entry.to_target_s is not None}


def equal_turns(record: Record) -> Record:
    """Return a cell whose arms have as many turns: those of the arm with the fewest."""
    fewest = min(len(arm["step_s"]) for arm in record["arms"].values())
    arms = {name: {**arm, "step_s": arm["step_s"][:fewest]} for name, arm in record["arms"].items()}
    return {**record, "arms": arms}


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("steps", "curves", "free", "confirm"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=(), required=name in ("steps", "curves"))
    for name in ("md", "html", "json"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    if given.html:
        require_plotly()
    found = joined(given)
    facts = {"command": shlex.join(["python", *sys.argv])}
    facts |= {name: measured(lines(paths, *kinds)) for name, (paths, kinds) in files(given).items()}
    facts["cpu"], facts["software"] = (machine()[name] for name in ("cpu", "software"))
    text = markdown(found, INTRODUCTION, facts)
    print(text)
    if given.md:
        write_atomically(given.md, text)
    if given.html:
        write_atomically(given.html, page(found, facts))
    if given.json:
        write_atomically(given.json, json.dumps(as_bench(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
