"""Plans ready to be simulated: every exchange with its time by itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pliant.layouts.parts import OwnedParts
from pliant.netmodel import passes, work
from pliant.simulator.beside import side_by_side
from pliant.simulator.collective_rounds import ring
from pliant.simulator.context import SimulationContext
from pliant.simulator.exchange_time import Exchanges
from pliant.simulator.layout import (
    GradientPart,
    SimulatedWeights,
    batch_of,
    buckets_of,
    distinct_nodes,
    gradient_parts,
    weight_parts,
)
from pliant.simulator.owned import busiest_share, exchange_beside, new_weights, owned_parts
from pliant.simulator.pauses import pause_of_gradients_s, pause_of_weights_s
from pliant.simulator.shard_passes import ShardPasses, prepare_shards
from pliant.simulator.sparse_rows import SparseRows
from pliant.simulator.timed_exchange import TimedExchange, one_exchange, timed_exchange
from pliant.simulator.traffic import inside_groups, traffic_beside_shards
from pliant.simulator.turns import num_turns
from pliant.spec import Exchange, RegionServers, Sharded, SyncPlan, Timing, Workload, averaged_states
from pliant.spec.gradients import with_few_rounds

__all__ = ["PreparedPlan", "TimedWeightExchange", "prepare"]


@dataclass(frozen=True, kw_only=True)
class TimedWeightExchange:
    """A bucket of weights that is exchanged between steps, with the times of its exchanges, one after another."""

    part: SimulatedWeights
    tasks: tuple[TimedExchange, ...]
    follow_ups: tuple[TimedExchange | None, ...]

    @property
    def late(self) -> bool:
        """Whether steps are made between an exchange and the use of its result."""
        return self.part.timing.delay_steps > 0 or self.part.timing.pace == "free"

    @property
    def free(self) -> bool:
        """Whether each rank exchanges at the step that it is in."""
        return self.part.timing.pace == "free"

    @property
    def in_pairs(self) -> bool:
        """Whether two ranks exchange at a time."""
        return self.part.node.meets_in_pairs

    @property
    def follows_fastest(self) -> bool:
        """Whether a period is that of the fastest rank, and has fewer steps of a slower one."""
        core = self.part.node.core
        return isinstance(core, RegionServers) and core.scaled


@dataclass(frozen=True, kw_only=True)
class PreparedPlan:
    """A plan, ready to be run."""

    context: SimulationContext
    shards: ShardPasses
    """Gathers and reduce-scatters of a sharded model."""
    gradients: tuple[tuple[float, int, TimedExchange], ...]
    """Rows of (seconds after the start of backward, period in steps, times), in the order of the queue."""
    follow_ups: tuple[tuple[int, TimedExchange], ...]
    """Deferred work, which follows when all buckets have been handed over."""
    weights: tuple[TimedWeightExchange, ...]
    meet: TimedExchange | None
    """Time of the message in which ranks agree before weights at a free pace, or weighted ones, are exchanged."""
    share: TimedExchange | None
    """New weights from owners to all, after a step."""
    served: TimedExchange | None
    """Gradients to owners that step beside what a rank computes, and weights back."""
    staleness: int
    """Steps of a rank beside that exchange before it is waited for."""
    step_share: float
    """Part of the optimizer's work that the busiest rank does itself, after backward."""
    period: int
    """Steps after which everything repeats."""

    @property
    def settled(self) -> bool:
        """Whether nothing is under way between two steps, so that the first period is like every other."""
        follow_ups = [rest for mixed in self.weights for rest in mixed.follow_ups if rest is not None]
        return not (self.follow_ups or follow_ups or self.staleness or any(mixed.late for mixed in self.weights))

    @property
    def all_free(self) -> bool:
        """Whether no rank ever waits for another."""
        return bool(self.weights) and not self.gradients and all(mixed.free for mixed in self.weights)


def prepare(plan: SyncPlan, context: SimulationContext, bucket_bytes: int) -> PreparedPlan:
    """Measure every exchange that a plan makes."""
    workload, num_ranks = context.workload, context.num_ranks
    nodes = _nodes(plan, context)
    if any(isinstance(node, Sharded) for node in distinct_nodes(nodes)):
        plan.require_order_of_shards()
    owned = owned_parts(nodes, workload, num_ranks) if num_ranks > 1 else {}
    parts = _parts(plan, nodes, context, bucket_bytes) if num_ranks > 1 else []
    shards = prepare_shards(parts, context)
    gradients, follow_ups = _gradients(plan, parts, shards, owned, context)
    weights = _weights(nodes, context)
    meets = any(mixed.free or mixed.part.timing.weighted for mixed in weights if not mixed.in_pairs)
    tell = (ring(np.array([16.0]), num_ranks),) if meets and num_ranks > 1 else ()
    beside = {k: own for k, own in owned.items() if nodes[k].steps_beside}
    after = {k: own for k, own in owned.items() if k not in beside}
    served = exchange_beside(nodes, beside, context) if beside else ()
    bound = next((node.staleness_bound for node in distinct_nodes(nodes) if node.staleness_bound is not None), 1)
    periods = [node.timing.period * num_turns(node, context) for node in distinct_nodes(nodes)]
    periods += [state.period for node in distinct_nodes(nodes) for state in averaged_states(node)]
    return PreparedPlan(
        context=context,
        shards=shards,
        gradients=gradients,
        follow_ups=follow_ups,
        weights=weights,
        meet=one_exchange("meet", tell, context),
        share=one_exchange("new weights", new_weights(nodes, after, context), context) if after else None,
        served=one_exchange("owners", served, context),
        staleness=bound if served else 0,
        step_share=busiest_share(workload, after, num_ranks, beside),
        period=math.lcm(*periods),
    )


def _nodes(plan: SyncPlan, context: SimulationContext) -> list[Exchange]:
    """Return each tensor's node; equal nodes are one object. Sparse gradients are exact whatever the plan says.

    NCCL's all-reduce takes the place of few rounds.
    """
    workload, alike = context.workload, dict[Exchange, Exchange]()
    of_rule = [_for_workload(rule.exchange, workload, context.num_ranks) for rule in plan.rules]
    if context.overheads.nccl:
        of_rule = [with_few_rounds(node, few_rounds=False) for node in of_rule]
    of_rule = [alike.setdefault(node, node) for node in of_rule]
    if len(plan.rules) == 1:
        found = of_rule * len(workload.tensors)
    else:
        found = [
            next(c for c, rule in zip(of_rule, plan.rules, strict=True) if rule.match(t.name, t.layer, t.numel))
            for t in workload.tensors
        ]
    rows = SparseRows(way=plan.sparse)
    return [
        rows if tensor.sparse_rows and not node.exchanges_weights else node
        for tensor, node in zip(workload.tensors, found, strict=True)
    ]


def _for_workload(node: Exchange, workload: Workload, num_ranks: int) -> Exchange:
    """Return a plain node as a sharded model has it: the exchange among replicas."""
    if not workload.is_sharded or isinstance(node, Sharded):
        return node
    if not workload.has_replicas(num_ranks):
        raise ValueError(
            f"the workload {workload.name!r} is divided among all {num_ranks} ranks, and no two hold the same, but the "
            f"plan has {node}; write it as sharded(gradients=..., weights=...)."
        )
    return Sharded(replicas=node)


def _parts(
    plan: SyncPlan, nodes: Sequence[Exchange], context: SimulationContext, bucket_bytes: int
) -> list[GradientPart]:
    key = plan.bucket_bytes, bucket_bytes
    if key not in context.buckets:
        context.buckets[key] = buckets_of(plan, context.workload, bucket_bytes)
    return gradient_parts(context.buckets[key], nodes, context.workload)


def _gradients(
    plan: SyncPlan,
    parts: Sequence[GradientPart],
    shards: ShardPasses,
    owned: Mapping[int, OwnedParts],
    context: SimulationContext,
) -> tuple[tuple[tuple[float, int, TimedExchange], ...], tuple[tuple[int, TimedExchange], ...]]:
    if not parts:
        return (), ()
    last_s = max(part.ready_s for part in parts)
    first_s = last_s if plan.order == "at_end" else min(part.ready_s for part in parts)
    tasks: dict[int, tuple[float, int, TimedExchange]] = {}
    follow_ups: dict[int, tuple[int, TimedExchange]] = {}
    for node in distinct_nodes(part.node for part in parts):
        if node.leaves_gradients(node.timing.until_step):
            continue  # they stay with their rank
        mine = [k for k, part in enumerate(parts) if part.node is node]
        every = 1 if (stay := node.exchanges_weights) else node.timing.period
        pause_s = pause_of_gradients_s(context.workload, first_s, every, context.slowest)
        groups = [parts[k].tensors for k in mine]
        task, rest = _time_exchanges(node, groups, owned, context, 0, stay=stay, pause_s=pause_s)
        for index, k in enumerate(mine):
            ready_s = last_s if plan.order == "at_end" else parts[k].ready_s
            if task.seconds[index] > 0 or task.sent[index].any():
                tasks[k] = ready_s, every, timed_exchange(f"bucket {parts[k].bucket}", task, index)
            if rest.seconds[index] > 0:
                follow_ups[k] = every, timed_exchange(f"bucket {parts[k].bucket}", rest, index)
    for k, each in side_by_side(parts, {k: task[-1] for k, task in tasks.items()}, context).items():
        tasks[k] = (*tasks[k][:-1], each)
    scatters = {k: (parts[k].ready_s, 1, each) for k, each in shards.scatters.items()}
    rows = [held[k] for k in range(len(parts)) for held in (scatters, tasks) if k in held]
    return tuple(rows), tuple(follow_ups[k] for k in sorted(follow_ups))


def _weights(nodes: Sequence[Exchange], context: SimulationContext) -> tuple[TimedWeightExchange, ...]:
    parts = weight_parts(nodes, context.workload)
    found: dict[int, TimedWeightExchange] = {}
    alike: dict[tuple[int, Timing], list[int]] = {}
    for k, part in enumerate(parts):
        alike.setdefault((id(part.node), part.timing), []).append(k)
    for (_, timing), mine in alike.items():
        node = parts[mine[0]].node
        turns = range(num_turns(node, context))
        groups = [parts[k].tensors for k in mine]
        pause_s = pause_of_weights_s(timing, context.workload, context.slowest)
        times = partial(_time_exchanges, stay=False, pause_s=pause_s, is_state=not node.exchanges_weights)
        measured = [times(node, groups, {}, context, turn) for turn in turns]
        for index, k in enumerate(mine):
            found[k] = TimedWeightExchange(
                part=parts[k],
                tasks=tuple(timed_exchange(parts[k].label, task, index) for task, _ in measured),
                follow_ups=tuple(
                    timed_exchange(parts[k].label, rest, index) if rest.seconds[index] > 0 else None
                    for _, rest in measured
                ),
            )
    return tuple(found[k] for k in sorted(found))


def _time_exchanges(
    node: Exchange,
    groups: list[tuple[int, ...]],
    owned: Mapping[int, OwnedParts],
    context: SimulationContext,
    turn: int,
    *,
    stay: bool,
    pause_s: float,
    is_state: bool = False,
) -> tuple[Exchanges, Exchanges]:
    """Return what the exchanges of a node take after a pause, found once for each node and grouping.

    A state of the optimizer is copied to a buffer of float32, and back.
    """
    key = node, tuple(groups), turn, stay, pause_s, is_state, tuple(owned) if node.has_owners else ()
    if key in context.found:
        task, rest = context.found[key]
        return task, rest
    num = len(groups)
    batch = batch_of(context.workload, groups, owned if node.has_owners else {}, context.num_ranks)
    if is_state:
        batch = replace(batch, itemsize=np.full_like(batch.itemsize, 4.0))
    if context.num_ranks == 1:
        found = context.measure((), (), num)
    elif stay:  # weights are exchanged between hosts or racks, and gradients only inside
        num_bytes = batch.numel * (4 if node.works_in_float32 else batch.itemsize)
        found = context.measure(inside_groups(num_bytes, node, context.topology), (), num, pause_s)
    else:
        what = traffic_beside_shards(node, batch, context.topology, turn)
        copies = (work(passes(batch, 2)),) if is_state else ()
        what = replace(what, task=(*copies, *what.task, *copies))
        late = node.timing.delay_steps > 0 or node.timing.pace == "free"
        measure = context.measure_beside if late else context.measure
        found = measure(what.task, what.rest, num, pause_s)
    context.found[key] = found
    return found
