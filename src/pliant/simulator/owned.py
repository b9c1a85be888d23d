"""Parts of tensors with owners: what each rank holds, steps and sends."""

from collections.abc import Mapping, Sequence

import numpy as np

from pliant.layouts.parts import OwnedParts, joint_numel, place_parts
from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import Floats, Round
from pliant.simulator.collective_rounds import to_and_from
from pliant.simulator.context import SimulationContext
from pliant.simulator.layout import distinct_nodes, itemsize
from pliant.simulator.scheduled_owners import weights_to_all
from pliant.simulator.sparse_rows import stepped_numel
from pliant.spec import CodecSpec, Exchange, OwnerScheduling, Workload
from pliant.spec.owners import placement_of, schedule_of

__all__ = ["busiest_share", "new_weights", "owned_parts", "server_exchange"]


def owned_parts(nodes: Sequence[Exchange], workload: Workload, num_ranks: int) -> dict[int, OwnedParts]:
    """Return the parts of each tensor that has owners, by its place in workload.tensors, as the engine makes them.

    A workload does not know the optimizer: "auto" cuts as for one that works element by element.
    """
    found: dict[int, OwnedParts] = {}
    model_order = range(len(nodes) - 1, -1, -1)
    for node in distinct_nodes(nodes[k] for k in model_order if nodes[k].has_owners):
        placement, mine = placement_of(node), [k for k in model_order if nodes[k] is node]
        tensors = [workload.tensors[k] for k in mine]
        together = [joint_numel(tensor.shape, placement.cut) for tensor in tensors]
        sizes = [itemsize(tensor) for tensor in tensors]
        parts = place_parts([tensor.numel for tensor in tensors], together, sizes, placement, num_ranks)
        found.update(zip(mine, parts, strict=True))
    return found


def busiest_share(workload: Workload, parts: Mapping[int, OwnedParts], num_ranks: int) -> float:
    """Return the part of the optimizer's work that the busiest rank does: its own, and all that has no owner."""
    steps = np.zeros(num_ranks)
    for k, tensor in enumerate(workload.tensors):
        steps += parts[k].per_rank(parts[k].numels, num_ranks) if k in parts else stepped_numel(tensor, num_ranks)
    whole = sum(stepped_numel(tensor, num_ranks) for tensor in workload.tensors)
    return float(steps.max() / max(1, whole)) if parts else 1.0


def new_weights(
    nodes: Sequence[Exchange], parts: Mapping[int, OwnedParts], context: SimulationContext
) -> tuple[Round, ...]:
    """Return the messages of new weights to all after a step: of each kind of levels, each schedule, and each dtype."""
    kinds: dict[tuple[bool, OwnerScheduling, int], dict[int, OwnedParts]] = {}
    for k, own in parts.items():
        key = bool(nodes[k].levels), schedule_of(nodes[k]), itemsize(context.workload.tensors[k])
        kinds.setdefault(key, {})[k] = own
    rounds: tuple[Round, ...] = ()
    for (by_hosts, schedule, size), mine in kinds.items():
        held = np.zeros((1, context.num_ranks))
        for own in mine.values():
            held[0] += own.per_rank(own.numels, context.num_ranks)
        rounds += weights_to_all(schedule, held, size, context.topology, by_hosts=by_hosts)
    return rounds


def server_exchange(
    parts: Mapping[int, OwnedParts], codec: CodecSpec | None, context: SimulationContext, busiest: float
) -> tuple[Round, ...]:
    """Return the round trip to servers: a head and gradients to each owner, its step, and float32 back."""
    num_ranks = context.num_ranks
    numel = np.zeros(num_ranks)
    for own in parts.values():
        numel += own.per_rank(own.numels, num_ranks)
    step_s = np.array([context.workload.step_s * busiest * context.slowest])
    before, most = {"reduce_bytes": _bytes_of(context.workload)}, numel.max(keepdims=True)
    added = {"reduce_bytes": 4 * most * num_ranks}
    if codec is not None:
        before[f"encode {codec.name}"] = numel.sum(keepdims=True)
        added = {f"add {codec.name}": most * num_ranks}
    answer, question = (
        np.array([[8 + payload_bytes(each, int(n)) if n else 0.0 for n in numel]]) for each in (None, codec)
    )
    rounds = to_and_from(question, {**added, "compute_s": step_s}, back=answer)
    return (Round(messages=None, before=before), *rounds)


def _bytes_of(workload: Workload) -> Floats:
    return np.array([float(sum(tensor.numel * itemsize(tensor) for tensor in workload.tensors))])
