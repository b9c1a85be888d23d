"""Runs that a simulator has predicted, beside those that were measured."""

from collections.abc import Sequence

from pliant_bench.dataset.records import Row, SimulatedRun, rule_rows
from pliant_bench.dataset.schema import COLUMNS
from pliant_bench.dataset.tables import Dataset, from_rows

__all__ = ["append_simulated"]


def append_simulated(dataset: Dataset, simulated: Sequence[SimulatedRun]) -> Dataset:
    """Return the data set with simulated runs behind its own, and its splits made anew.

    Models, topologies and plans that it does not have yet join it. `write` puts it on the disk.
    """
    rows = {name: dataset.rows(name) for name in COLUMNS if name != "splits"}
    known = {key: {row[key] for row in rows[table]} for table, key in _KEYS}
    first = sum(row["provenance"] == "simulated" for row in rows["runs"])
    for number, one in enumerate(simulated, first):
        model, network, planned = one.model.row(), one.network.row(), one.planned.row()
        for (table, key), row in zip(_KEYS, (model, network, planned), strict=True):
            if row[key] not in known[key]:
                known[key].add(row[key])
                rows[table].append(row)
                if table == "plans":
                    rows["buckets"] += rule_rows(one.planned.plan)
        ids = {"model_id": model["model_id"], "topo_id": network["topo_id"], "plan_id": planned["plan_id"]}
        rows["runs"].append({**_run_row(one, number), **ids})
    return from_rows(rows)


_KEYS = (("models", "model_id"), ("topologies", "topo_id"), ("plans", "plan_id"))


def _run_row(one: SimulatedRun, number: int) -> Row:
    return {
        "run_id": f"simulated-{number}",
        "provenance": "simulated",
        "simulator": one.simulator,
        "session_id": "",
        "kind": "plan",
        "number": number,
        "status": "ok",
        "reason": "",
        "num_steps": 0,
        "period": max(rule.exchange.timing.period for rule in one.planned.plan.rules),
        "step_s": one.step_s,
        "mean_s": one.step_s,
        "compute_s": one.compute_s,
        "exposed_s": one.exposed_s,
        "codec_s": one.codec_s,
        "sent_bytes": one.sent_bytes,
        "ended": "",
        "drifted": False,
        "links_wrong": False,
    }
