"""Rows that were measured while computing slept: those of the first version, as rows of the second."""

import json
from pathlib import Path

from dataset.rows import Tables, rounded, simulated
from dataset.schema import SLEPT_FROM, Row

from pliant.planner import BASELINES
from pliant_bench.dataset import Dataset, load
from pliant_bench.dataset.measured import as_watched

__all__ = ["add_slept"]

_FIGURES = ("compute_s", "exposed_s", "codec_s", "sent_bytes", "load")


def add_slept(tables: Tables, folder: Path = SLEPT_FROM) -> None:
    """Add the runs of a data set of `pliant collect --export`. Its machines' commands, which name folders, stay out."""
    data = load(folder)
    sessions = {row["session_id"]: row for row in data.rows("sessions")}
    for row in data.rows("runs"):
        tables.runs.append(_run(tables, data, row, sessions[row["session_id"]]))


def _run(tables: Tables, data: Dataset, row: Row, session: Row) -> Row:
    model, network = data.models[row["model_id"]], data.topologies[row["topo_id"]]
    planned = data.plans[row["plan_id"]]
    machine = json.loads(session["machine"])
    software = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "pliant") if name in machine)
    cpu = f"{machine['num_cpus']} x {machine['cpu']}; {software}" if "cpu" in machine else software
    wrong = ["a link was more than a quarter off"] if session["links_wrong"] else []
    workload = as_watched(model.workload, network, session["compute_s"])
    key = tables.session(f"slept-{row['session_id']}", session["began"], cpu, workload, wrong)
    found = simulated(planned.plan, workload, network.topology, network.slow_share)
    found.pop("predicted", None)
    plain = "builder" if planned.generator in BASELINES else "sample"
    return {
        "run": f"slept-{row['run_id']}",
        "kind": "measured-slept",
        "status": row["status"],
        "reason": row["reason"],
        "origin": plain if row["kind"] == "plan" else row["kind"],
        "name": planned.generator,
        "session": key,
        "model": tables.model(model.family, model.workload, model.size_share),
        "cluster": tables.cluster(row["topo_id"].rpartition("-")[0], network.topology, network.slow_share),
        "plan": tables.plan(planned.plan),
        "optimizer": "SGD",
        "step_s": rounded(row["step_s"]),
        "blocks_s": [rounded(s) for s in data.samples_of(row["run_id"]).tolist()],
        "num_steps": row["num_steps"],
        "period": row["period"],
        **{name: rounded(row[name]) for name in _FIGURES},
        **found,
        "seed": 0,
        "version": session["began"][:10],
    }
