"""Bytes and step times that the simulator predicts for a sharded model, from what a session has measured."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pliant.netmodel import Overheads
from pliant.simulator import Simulated, simulate
from pliant.spec import Machine, SyncPlan, Topology, Workload, from_json
from pliant.spec.workload import ROOT_GROUP

__all__ = ["divided", "predicted"]

_BLOCKS = "blocks."


def predicted(session: Mapping[str, Any], plan: Mapping[str, Any]) -> Simulated:
    """Return what the simulator says of a plan in a session, whose records are JSON."""
    kinds = {"workload": Workload, "topology": Topology, "machine": Machine}
    read = {name: from_json(kind, json.dumps(session[name])) for name, kind in kinds.items()}
    overheads, topology = Overheads.of(read["machine"]), read["topology"]
    workload = divided(read["workload"], topology.num_ranks)
    return simulate(from_json(SyncPlan, json.dumps(plan)), workload, topology, overheads=overheads)


def divided(workload: Workload, num_shards: int) -> Workload:
    """Return a workload with the groups in which FSDP2 exchanges parameters: a block each, and the rest.

    One that was observed of a sharded model has them; in those of earlier sessions the model was whole.
    """
    if workload.is_sharded:
        return workload
    names = [".".join(t.name.split(".")[:2]) if t.name.startswith(_BLOCKS) else ROOT_GROUP for t in workload.tensors]
    ends_s = {ROOT_GROUP: workload.backward_s}  # the rest is exchanged when backward ends
    tensors = [
        replace(tensor, group=name, ready_s=ends_s.get(name, tensor.ready_s))
        for tensor, name in zip(workload.tensors, names, strict=True)
    ]
    return replace(workload, tensors=tuple(sorted(tensors, key=lambda t: t.ready_s)), num_shards=num_shards)
