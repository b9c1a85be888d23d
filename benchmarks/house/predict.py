"""Predictions of whichever version of Pliant is on the path, before or after the merge of the network models.

Reads a JSON list of arms on standard input: texts of plan, workload and topology, and of a machine or null, for which
the version's defaults stand. Writes a JSON list of what each should take.
"""

import json
import sys

from pliant.simulator import simulate
from pliant.spec import Machine, SyncPlan, Topology, Workload, from_json


def predict(arm: dict) -> dict:
    given = {}
    if arm["machine"] is not None:
        from pliant.netmodel import Overheads  # which the version before the merge lacks

        given["overheads"] = Overheads.of(from_json(Machine, json.dumps(arm["machine"])))
    plan, workload, topology = (
        from_json(kind, json.dumps(arm[name]))
        for kind, name in ((SyncPlan, "plan"), (Workload, "workload"), (Topology, "topology"))
    )
    found = simulate(plan, workload, topology, **given)
    names = ("step_s", "compute_s", "exposed_s", "exchange_s", "codec_s", "counted", "critical_path")
    return {name: getattr(found, name) for name in names} | {"sent_bytes": max(found.sent_bytes)}


if __name__ == "__main__":
    print(json.dumps([predict(arm) for arm in json.load(sys.stdin)]))
