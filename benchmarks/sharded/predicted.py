"""Bytes and step times that the simulator predicts for a sharded model, from what a session has measured."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pliant.netmodel import Overheads
from pliant.simulator import Simulated, simulate
from pliant.spec import Machine, Rule, Sharded, SyncPlan, Topology, Workload, from_json

__all__ = ["divided", "predict", "predicted"]

_BLOCKS = "blocks."


def predicted(session: Mapping[str, Any], plan: Mapping[str, Any]) -> Simulated:
    """Return what the simulator says of a plan in a session, whose records are JSON."""
    kinds = {"workload": Workload, "topology": Topology, "machine": Machine}
    read = {name: from_json(kind, json.dumps(session[name])) for name, kind in kinds.items()}
    overheads, topology = Overheads.of(read["machine"]), read["topology"]
    workload = divided(read["workload"], topology.num_ranks)
    return predict(from_json(SyncPlan, json.dumps(plan)), workload, topology, overheads)


def divided(workload: Workload, num_shards: int) -> Workload:
    """Return a workload with the groups in which FSDP2 exchanges parameters: a block each, and the rest.

    One that was observed of a sharded model has them; in those of earlier sessions the model was whole.
    """
    if workload.is_sharded:
        return workload
    names = [".".join(t.name.split(".")[:2]) if t.name.startswith(_BLOCKS) else "" for t in workload.tensors]
    ends_s = {"": workload.backward_s}  # the rest is exchanged when backward ends
    tensors = [
        replace(tensor, group=name, ready_s=ends_s.get(name, tensor.ready_s))
        for tensor, name in zip(workload.tensors, names, strict=True)
    ]
    return replace(workload, tensors=tuple(sorted(tensors, key=lambda t: t.ready_s)), num_shards=num_shards)


def predict(plan: SyncPlan, workload: Workload, topology: Topology, overheads: Overheads | None = None) -> Simulated:
    """Return what the simulator says of a plan for a model whose blocks are sharded one by one, and the rest as one.

    What forward has gathered of the rest is kept, so that backward does not gather it again.
    """
    rules = [rule for given in plan.rules for rule in (_for_blocks(given), _for_rest(given))]
    return simulate(replace(plan, rules=tuple(rules)), workload, topology, overheads=overheads)


def _for_blocks(rule: Rule) -> Rule:
    return replace(rule, match=replace(rule.match, pattern=f"{_BLOCKS}*")) if rule.match.pattern == "*" else rule


def _for_rest(rule: Rule) -> Rule:
    node = rule.exchange
    if not isinstance(node, Sharded) or node.weights is None:
        return rule
    return replace(rule, exchange=replace(node, weights=replace(node.weights, regather=False)))
