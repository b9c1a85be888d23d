"""Rows of the data set from Pliant's records, and what the simulator says of a plan. No torch."""

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dataset.schema import Row, plan_id_of

from pliant.netmodel import KEYS, Overheads
from pliant.planner.genome import SMALL_NUMEL
from pliant.simulator import simulate
from pliant.spec import Exchange, SyncPlan, Topology, Workload, canonical_hash, to_json
from pliant_bench.dataset.records import slowdown_of

__all__ = ["OVERHEADS", "SIMULATOR", "Tables", "family_of", "rounded", "simulated"]

OVERHEADS = Overheads()
SIMULATOR = f"pliant {version('pliant')}, overheads {canonical_hash(OVERHEADS)[:8]}"
_PARTS = ("compute_s", "wire_s", "latency_s")
_DIGITS = 5


class Tables:
    """Models, clusters, plans, sessions and runs of a data set, each of the first four once."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in ("models", "clusters", "plans", "sessions")}
        self.runs: list[Row] = []

    def model(self, family: str, workload: Workload, size_share: float = 1.0) -> str:
        """Add a model's tensors, and return its key."""
        tensors = [[t.name, list(t.shape), t.dtype, t.layer] for t in workload.tensors]
        key = f"{family}-{plan_id_of(json.dumps(tensors))[:8]}"
        named = [dict(zip(("name", "shape", "dtype", "layer"), one, strict=True)) for one in tensors]
        row = {"model": key, "family": family, "size_share": rounded(size_share), "num_bytes": 4 * workload.numel}
        self.rows["models"].setdefault(key, {**row, "tensors": named})
        return key

    def cluster(self, name: str, topology: Topology, slow_share: float) -> str:
        """Add a cluster, and return its key."""
        plain = replace(topology, provenance="")
        key = f"{name}-{plan_id_of(to_json(plain) + str(slow_share))[:8]}"
        row = {
            "cluster": key,
            "num_ranks": topology.num_ranks,
            "num_hosts": len(topology.hosts),
            "slow_share": slow_share,
            "pairs": bool(topology.links),
            "topology": json.loads(to_json(plain)),
        }
        self.rows["clusters"].setdefault(key, row)
        return key

    def plan(self, plan: SyncPlan) -> str:
        """Add a plan, and return its key."""
        text = to_json(replace(plan, name="", provenance=""))
        key, family = plan_id_of(text), family_of(plan)
        row = {"plan": key, "family": family, "hybrid": "+" in family, "json": text}
        self.rows["plans"].setdefault(key, row)
        return key

    def session(self, key: str, began: str, machine: str, workload: Workload, links_wrong: Sequence[str] = ()) -> str:
        """Add a stay of the ranks in a cell, and return its key."""
        times = (("forward_s", workload.forward_s), ("backward_s", workload.backward_s))
        row = {
            "session": key,
            "began": began,
            "machine": machine,
            **{name: rounded(seconds) for name, seconds in (*times, ("optimizer_s", workload.step_s))},
            "ready_s": [rounded(t.ready_s) for t in workload.tensors],
            "links_wrong": list(links_wrong),
        }
        self.rows["sessions"].setdefault(key, row)
        return key


def rounded(value: float | None) -> float | None:
    """Return a figure with as many digits as a measurement has."""
    return None if value is None or value != value else float(f"{value:.{_DIGITS}g}")


def family_of(plan: SyncPlan) -> str:
    """Return the nodes that exchange, with codecs; of a hybrid those of each rule, but for what is spared as small."""
    rules = [rule for rule in plan.rules if rule.match.max_numel != SMALL_NUMEL] or list(plan.rules)
    return "+".join(sorted({_family(rule.exchange) for rule in rules}))


def _family(node: Exchange) -> str:
    codec = node.payload_codec
    types = ">".join(type(each).__name__ for each in node.walk())
    return f"{types}:{codec.name}" if codec is not None else types


def simulated(plan: SyncPlan, workload: Workload, topology: Topology, slow_share: float) -> dict[str, Any]:
    """Return what the simulator as given predicts of a plan, or nothing where the plan does not fit there."""
    try:
        found = simulate(plan, workload, topology, overheads=OVERHEADS, slowdown=slowdown_of(topology, slow_share))
    except ValueError:
        return {"simulated_s": None, "simulated_parts": []}
    seconds = dict(zip(KEYS, OVERHEADS.coefficients(), strict=True))
    parts = [found.counted.get(key, 0.0) * seconds[key] / found.step_s for key in _PARTS]
    return {
        "simulated_s": rounded(found.step_s),
        "simulated_parts": [round(float(part), 4) for part in (*parts, max(0.0, 1 - sum(parts)))],
        "predicted": found,
    }
