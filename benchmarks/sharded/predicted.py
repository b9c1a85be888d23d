"""Bytes and step times that the simulator predicts for a sharded model, from what a session has measured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pliant.netmodel import Overheads
from pliant.simulator import Simulated, simulate
from pliant.spec import Machine, Rule, Sharded, SyncPlan, TensorSpec, Topology, Workload, from_json

__all__ = ["predict", "predicted"]

_BLOCKS = "blocks.*"


def predicted(session: Mapping[str, Any], plan: Mapping[str, Any]) -> Simulated:
    """Return what the simulator says of a plan in a session, whose records are JSON."""
    kinds = {"workload": Workload, "topology": Topology, "machine": Machine}
    read = {name: from_json(kind, json.dumps(session[name])) for name, kind in kinds.items()}
    overheads = Overheads.of(read["machine"])
    return predict(from_json(SyncPlan, json.dumps(plan)), read["workload"], read["topology"], overheads)


def predict(plan: SyncPlan, workload: Workload, topology: Topology, overheads: Overheads | None = None) -> Simulated:
    """Return what the simulator says of a plan for a model each of whose blocks is sharded, and the rest as one.

    Parameters of one module are exchanged together, when the last of them is ready; the rest when backward ends. What
    forward has gathered of the rest is kept, so that backward does not gather it again.
    """
    groups: dict[str, list[TensorSpec]] = {}
    for tensor in workload.tensors:
        name = ".".join(tensor.name.split(".")[:2]) if tensor.name.startswith("blocks.") else ""
        groups.setdefault(name, []).append(tensor)
    rest = groups.pop("")
    blocks = sorted(groups.values(), key=_ready_s)
    ordered = [*(_together(block, _ready_s(block)) for block in blocks), _together(rest, workload.backward_s)]
    tensors = tuple(tensor for group in ordered for tensor in group)
    sizes = {sum(4 * tensor.numel for tensor in block) for block in blocks}
    if len(sizes) != 1 or sum(4 * tensor.numel for tensor in rest) > min(sizes):
        raise ValueError(f"blocks have {sizes} bytes, and the rest is to be smaller; the simulator's buckets differ.")
    rules = [rule for given in plan.rules for rule in (_for_blocks(given), _for_rest(given))]
    whole = replace(plan, rules=tuple(rules), bucket_bytes=sizes.pop())
    return simulate(whole, replace(workload, tensors=tensors), topology, overheads=overheads)


def _ready_s(tensors: Sequence[TensorSpec]) -> float:
    return max(tensor.ready_s for tensor in tensors)


def _together(tensors: Sequence[TensorSpec], ready_s: float) -> list[TensorSpec]:
    return [replace(tensor, ready_s=ready_s) for tensor in tensors]


def _for_blocks(rule: Rule) -> Rule:
    return replace(rule, match=replace(rule.match, pattern=_BLOCKS)) if rule.match.pattern == "*" else rule


def _for_rest(rule: Rule) -> Rule:
    node = rule.exchange
    if not isinstance(node, Sharded) or node.weights is None:
        return rule
    return replace(rule, exchange=replace(node, weights=replace(node.weights, regather=False)))
