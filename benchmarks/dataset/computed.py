"""Rows that were measured while computing was real: from the lines of `measure.py` and the list of trials."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

from dataset.rows import Tables, rounded, simulated
from dataset.schema import LINES, Row
from dataset.trial_list import LIST, SEED, Record, plan_of, read, topology_of
from tasc.accuracy_book import read_records

from pliant.spec import Workload, from_json

__all__ = ["add_computed"]

_FIGURES = ("exposed_s", "codec_s", "sent_bytes", "load")


def add_computed(tables: Tables, lines: Path = LINES, trials: Path = LIST) -> None:
    """Add a row for each line of a trial; a line of a trial that the list does not have is left out."""
    said = read_records(lines) if lines.exists() else []
    sessions = {line["number"]: line for line in said if line.get("kind") == "session"}
    listed = {(one["cell"], one["number"]): one for one in read("trial", trials)}
    cells = {one["cell"]: one for one in read("cell", trials)}
    clusters = {one["cluster"]: one for one in read("cluster", trials)}
    seen: set[tuple[str, int]] = set()
    for line in said:
        place = (line.get("cell", ""), line.get("number", -1))
        if line.get("kind") != "trial" or place in seen or place not in listed:
            continue
        seen.add(place)
        cell = cells[line["cell"]]
        tables.runs.append(
            _run(tables, line, listed[place], cell, clusters[cell["cluster"]], sessions[line["session"]])
        )


def _run(tables: Tables, line: Row, trial: Record, cell: Record, cluster: Record, session: Row) -> Row:
    workload = from_json(Workload, json.dumps(session["workload"]))
    topology = replace(topology_of(cluster), num_cpus=float(line["cpu"].split()[0]))  # hosts share them
    plan, slow_share = plan_of(trial), cluster["slow_share"]
    machine = f"{line['cpu']}; {line['software']}; commit {line['commit']}"
    key = tables.session(f"computed-{session['number']}", session["at"], machine, workload, session["links_wrong"])
    found = simulated(plan, workload, topology, slow_share)
    found.pop("predicted", None)
    blocks_s = [mean for mean, _, _ in line.get("samples", ())]
    alone_s = workload.forward_s + workload.backward_s + workload.step_s
    return {
        "run": f"computed-{line['cell']}-{line['number']}",
        "kind": "measured-computed",
        "status": line["status"],
        "reason": line["reason"],
        "origin": "repeat" if trial["origin"] == "control again" else trial["origin"],
        "name": trial["name"],
        "session": key,
        "model": tables.model(cell["model"], workload),
        "cluster": tables.cluster(cell["cluster"], topology, slow_share),
        "plan": tables.plan(plan),
        "optimizer": cell["optimizer"],
        "step_s": rounded(statistics.median(blocks_s)) if blocks_s else None,
        "blocks_s": [rounded(s) for s in blocks_s],
        "num_steps": line.get("num_steps", 0),
        "period": line.get("period", 0),
        "compute_s": rounded(alone_s / (slow_share or 1.0)),
        **{name: rounded(line.get(name)) for name in _FIGURES},
        **found,
        "seed": SEED,
        "version": line["commit"],
    }
