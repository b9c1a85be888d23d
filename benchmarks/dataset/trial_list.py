"""The committed list of measured trials, and its records. No torch."""

import json
from pathlib import Path
from typing import Any

from dataset.schema import LIST

from pliant.spec import SyncPlan, Topology, from_json

__all__ = ["LIST", "SEED", "Record", "plan_of", "read", "topology_of"]

SEED = 1
Record = dict[str, Any]


def read(kind: str, path: Path = LIST) -> list[Record]:
    """Return the list's records of one kind: clusters, cells or trials."""
    records: list[Record] = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def topology_of(cluster: Record) -> Topology:
    """Return the hosts of a cluster."""
    return from_json(Topology, json.dumps(cluster["topology"]))


def plan_of(one: Record) -> SyncPlan:
    """Return the plan of a trial."""
    return from_json(SyncPlan, json.dumps(one["plan"]))
