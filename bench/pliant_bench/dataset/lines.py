"""Reader of the lines that `pliant collect` has written: tables of a data set."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pliant.planner.genome import Genome
from pliant.spec import Topology, Workload, from_json
from pliant_bench.dataset.records import ModelRow, NetworkRow, PlanRow, Row, rule_rows
from pliant_bench.dataset.tables import Dataset, from_rows

__all__ = ["dataset_of"]

_DRIFT = 0.1
_FIGURES = (
    *("sent_bytes", "received_bytes", "wire_bytes", "exposed_s", "exchange_s", "codec_s"),
    *("peak_bytes", "switch_s", "took_s", "load"),
)


def dataset_of(
    lines: Sequence[Mapping[str, Any]], *, micro: Sequence[Row] = (), convergence: Sequence[Row] = ()
) -> Dataset:
    """Return the data set of a collection.

    Args:
        lines: Of one or several files of `pliant collect`, as JSON objects.
        micro: Rows of the table of that name.
        convergence: Likewise.

    Raises:
        ValueError: A trial has no session, or there is no trial at all.

    """
    sessions = {line["session_id"]: _Session(line) for line in lines if line["kind"] == "session"}
    for line in lines:
        if line["kind"] not in ("trial", "session_end"):
            continue
        if line["session_id"] not in sessions:
            raise ValueError(f"a {line['kind']} belongs to session {line['session_id']}, which no line begins.")
        sessions[line["session_id"]].take(line)
    if not any(session.trials for session in sessions.values()):
        raise ValueError("no trial was run yet; a data set needs at least one.")
    rows: dict[str, list[Row]] = {"micro": list(micro), "convergence": list(convergence), "runs": [], "steps": []}
    for session in sessions.values():
        rows["runs"] += [session.run_row(trial) for trial in session.trials]
        rows["steps"] += [row for trial in session.trials for row in session.step_rows(trial)]
    rows["sessions"] = [session.row() for session in sessions.values()]
    rows["models"] = list({s.model.id: s.model.row() for s in sessions.values()}.values())
    rows["topologies"] = list({s.network.id: s.network.row() for s in sessions.values()}.values())
    planned = {plan.plan.hash: plan for s in sessions.values() for plan in (_plan_row(t) for t in s.trials)}
    rows["plans"] = [plan.row() for plan in planned.values()]
    rows["buckets"] = [row for plan in planned.values() for row in rule_rows(plan.plan)]
    return from_rows(rows)


class _Session:
    """One stay of the ranks in a cell."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._line = line
        self._end: Mapping[str, Any] = {"links": [], "links_wrong": []}
        self.trials: list[Mapping[str, Any]] = []
        self.model = ModelRow(
            family=line["cell"]["model"],
            workload=from_json(Workload, json.dumps(line["workload"])),
            size_share=line["size_share"],
        )
        self.network = NetworkRow(
            topology=from_json(Topology, json.dumps(line["topology"])),
            slow_share=line["cell"]["slow_share"],
            kind="hosts" if line["emulated"] else "loopback",
        )

    def take(self, line: Mapping[str, Any]) -> None:
        """Take a trial, or the end."""
        if line["kind"] == "trial":
            self.trials.append(line)
        else:
            self._end = line

    def row(self) -> Row:
        """Return the row of sessions."""
        return {
            "session_id": self._line["session_id"],
            **self._ids,
            "began": self._line["began"],
            "compute_s": self._line["compute_s"],
            "control_spread": self._spread,
            "drifted": self._spread > _DRIFT,
            "links_before": self._line["links"],
            "links_after": self._end["links"],
            "links_wrong": self._links_wrong,
            "machine": json.dumps(self._line["machine"]),
        }

    def run_row(self, trial: Mapping[str, Any]) -> Row:
        """Return the row of runs."""
        return {
            "run_id": _run_id(trial),
            "provenance": "measured_emulated" if self._line["emulated"] else "measured_loopback",
            "simulator": "",
            "session_id": trial["session_id"],
            **self._ids,
            "plan_id": _plan_row(trial).plan.hash,
            "kind": trial["entry"],
            "number": trial["number"],
            "status": trial["status"],
            "reason": trial["reason"],
            "num_steps": trial.get("num_steps", 0),
            "period": trial.get("period", 0),
            **_statistics(self._paces_s(trial)),
            "compute_s": self._line["compute_s"],
            **{name: trial.get(name) for name in _FIGURES},
            "ended": trial["ended"],
            "drifted": self._spread > _DRIFT,
            "links_wrong": self._links_wrong,
        }

    def step_rows(self, trial: Mapping[str, Any]) -> list[Row]:
        """Return the rows of steps."""
        samples = zip(self._paces_s(trial), trial.get("samples", ()), strict=True)
        return [
            {"run_id": _run_id(trial), "sample": k, "pace_s": pace, "mean_s": mean, "max_s": largest, "rank0_s": first}
            for k, (pace, (mean, largest, first)) in enumerate(samples)
        ]

    def _paces_s(self, trial: Mapping[str, Any]) -> list[float]:
        """Return the pace of the group in each sample: the mean over ranks, or with a slow host that of the slowest.

        In the few steps of a turn, ranks that wait for a part of the others alone run further ahead of a slow one than
        they can in a training. Where each rank goes at its own pace, they are never slowed, and the mean is right.
        """
        samples = trial.get("samples", ())
        if not self.network.slow_share or _is_free(trial):
            return [mean for mean, _, _ in samples]
        return [largest for _, largest, _ in samples]

    @property
    def _ids(self) -> Row:
        return {"model_id": self.model.id, "topo_id": self.network.id}

    @property
    def _links_wrong(self) -> bool:
        return bool(self._line["links_wrong"] or self._end["links_wrong"])

    @property
    def _spread(self) -> float:
        """Return the spread of controls as a share of their median; the first of several finds connections cold."""
        controls = [t for t in self.trials if t["entry"] == "control" and t["status"] == "ok"]
        controls = controls[1:] or controls
        steps_s = [statistics.median(mean for mean, _, _ in t["samples"]) for t in controls]
        middle = statistics.median(steps_s) if steps_s else 0.0
        return max((abs(s / middle - 1) for s in steps_s), default=0.0)


def _plan_row(trial: Mapping[str, Any]) -> PlanRow:
    return PlanRow(genes=from_json(Genome, json.dumps(trial["genes"])), generator=trial["name"])


def _is_free(trial: Mapping[str, Any]) -> bool:
    return any(rule.exchange.timing.pace == "free" for rule in _plan_row(trial).plan.rules)


def _run_id(trial: Mapping[str, Any]) -> str:
    return f"{trial['session_id']}-{trial['number']}"


def _statistics(samples_s: Sequence[float]) -> Row:
    """Return what samples come to; nothing without any."""
    if not samples_s:
        return {}
    s = np.array(samples_s)
    middle = float(np.median(s))
    mad = float(np.median(np.abs(s - middle)))
    half = 1.96 * np.sqrt(np.pi / 2) * 1.4826 * mad / np.sqrt(len(s))
    return {
        "step_s": middle,
        "mean_s": float(s.mean()),
        "p10_s": float(np.quantile(s, 0.1)),
        "p90_s": float(np.quantile(s, 0.9)),
        "mad_s": mad,
        "ci95_low_s": float(middle - half),
        "ci95_high_s": float(middle + half),
    }
