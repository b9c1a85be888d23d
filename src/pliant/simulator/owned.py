"""Parts of tensors with owners: what each rank holds, steps and sends."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pliant.layouts.parts import OwnedParts, joint_numel, place_parts
from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import Floats, Round, work
from pliant.simulator.collective_rounds import to_and_from
from pliant.simulator.context import SimulationContext
from pliant.simulator.layout import batch_of, distinct_nodes, itemsize
from pliant.simulator.scheduled_owners import sums_to_owners, weights_to_all
from pliant.simulator.sparse_rows import stepped_numel
from pliant.spec import CodecSpec, Exchange, OwnedOptimizer, OwnerScheduling, Workload
from pliant.spec.owners import placement_of, schedule_of

__all__ = ["busiest_share", "exchange_beside", "new_weights", "owned_parts"]


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


def busiest_share(
    workload: Workload, parts: Mapping[int, OwnedParts], num_ranks: int, beside: Container[int] = ()
) -> float:
    """Return the part of the optimizer's work that the busiest rank does after backward: its own parts, and all that
    has no owner; nothing of what is stepped beside backward.
    """
    steps, whole = np.zeros(num_ranks), 0
    for k, tensor in enumerate(workload.tensors):
        whole += (stepped := stepped_numel(tensor, num_ranks))
        if k not in beside:
            steps += parts[k].per_rank(parts[k].numels, num_ranks) if k in parts else stepped
    return float(steps.max() / max(1, whole)) if whole else 1.0


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


def exchange_beside(
    nodes: Sequence[Exchange], parts: Mapping[int, OwnedParts], context: SimulationContext
) -> tuple[Round, ...]:
    """Return one exchange with owners that step beside what ranks compute: gradients there, and weights back."""
    held = np.zeros((1, context.num_ranks))
    for own in parts.values():
        held[0] += own.per_rank(own.numels, context.num_ranks)
    whole = sum(stepped_numel(tensor, context.num_ranks) for tensor in context.workload.tensors)
    step_s = np.array([context.workload.step_s * held.max() / max(1, whole) * context.slowest])
    some = [nodes[k] for k in parts]
    if some[0].staleness_bound is not None:
        return _server_exchange(held[0], _bytes_of(parts, context.workload), some[0].payload_codec, step_s, context)
    rounds = [
        each
        for node in distinct_nodes(some)
        for each in _sums_at_owners(node, [k for k in parts if nodes[k] is node], parts, context)
    ]
    return (*rounds, work({"compute_s": step_s}), *new_weights(nodes, parts, context))


def _sums_at_owners(
    node: Exchange, tensors: Sequence[int], parts: Mapping[int, OwnedParts], context: SimulationContext
) -> list[Round]:
    """Return the rounds of gradients in float32 to the owners of these tensors."""
    core = node.core
    if not isinstance(core, OwnedOptimizer):
        raise TypeError(f"{node} has no owners that step with means of all ranks.")
    batch = batch_of(context.workload, [tuple(tensors)], parts, context.num_ranks)
    batch = replace(batch, itemsize=np.full_like(batch.itemsize, 4))
    return sums_to_owners(core, batch, context.topology, by_hosts=bool(node.levels))


def _server_exchange(
    numel: Floats, num_bytes: Floats, codec: CodecSpec | None, step_s: Floats, context: SimulationContext
) -> tuple[Round, ...]:
    """Return the round trip to servers: a head and gradients to each owner, its step, and float32 back."""
    num_ranks = context.num_ranks
    before, most = {"reduce_bytes": num_bytes}, numel.max(keepdims=True)
    added = {"reduce_bytes": 4 * most * num_ranks}
    if codec is not None:
        before[f"encode {codec.name}"] = numel.sum(keepdims=True)
        added = {f"add {codec.name}": most * num_ranks}
    answer, question = (
        np.array([[8 + payload_bytes(each, int(n)) if n else 0.0 for n in numel]]) for each in (None, codec)
    )
    rounds = to_and_from(question, {**added, "compute_s": step_s}, back=answer)
    return (work(before), *(replace(each, posted=True) for each in rounds))  # a thread of its own waits for questions


def _bytes_of(places: Iterable[int], workload: Workload) -> Floats:
    held = (workload.tensors[k] for k in places)
    return np.array([float(sum(tensor.numel * itemsize(tensor) for tensor in held))])
