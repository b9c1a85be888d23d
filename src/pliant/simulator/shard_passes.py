"""Gathers before the passes of a sharded model and reduce-scatters behind them, each with its time by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.simulator.collective_rounds import gather_of_few
from pliant.simulator.context import SimulationContext
from pliant.simulator.exchange_time import Exchanges
from pliant.simulator.layout import GradientPart, batch_of, distinct_nodes
from pliant.simulator.pauses import pause_of_gathers_s, pause_of_gradients_s
from pliant.simulator.sharded import shard_traffic
from pliant.simulator.timed_exchange import TimedExchange, one_exchange, timed_exchange
from pliant.spec import Sharded
from pliant.spec.workload import ROOT_GROUP

__all__ = ["GroupGathers", "ShardPasses", "prepare_shards"]

_FINDING_BYTES = np.array([24.0])


@dataclass(frozen=True, kw_only=True)
class GroupGathers:
    """Gathers of the weights that one `fully_shard` call holds together."""

    ready_s: float
    """When its gradients are complete, counted from the start of backward."""
    share: float
    """Its part of backward, which is taken for its part of forward too."""
    is_root: bool
    """Whether it has what no inner module has: it is gathered first, and torch keeps its weights for backward."""
    before_forward: tuple[TimedExchange, ...]
    before_backward: tuple[TimedExchange, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPasses:
    """Gathers, reduce-scatters and findings of a plan."""

    groups: tuple[GroupGathers, ...] = ()
    """In the order of backward; nothing where weights are whole."""
    scatters: Mapping[int, TimedExchange]
    """Reduce-scatter of each part that has one."""
    findings: TimedExchange | None = None
    """Message in which ranks tell each other of gradients that are not finite, when backward is over."""

    @property
    def in_forward(self) -> tuple[GroupGathers, ...]:
        """Groups in the order of forward: the root, and the others from the first layer on."""
        of_root = [group for group in self.groups if group.is_root]
        return (*of_root, *(group for group in reversed(self.groups) if not group.is_root))


def prepare_shards(parts: Sequence[GradientPart], context: SimulationContext) -> ShardPasses:
    """Measure what ranks send each other of their shards.

    Args:
        parts: Of all groups, in the order of backward.
        context: Workload and topology.

    """
    nodes = [node for node in distinct_nodes(part.node for part in parts) if isinstance(node, Sharded)]
    forward, backward = dict[int, TimedExchange](), dict[int, TimedExchange]()
    scatters: dict[int, TimedExchange] = {}
    for node in nodes:
        mine = [k for k, part in enumerate(parts) if part.node is node]
        found = _measure(node, [parts[k] for k in mine], context)
        kinds = (
            (forward, "weights of", node.weights is None),
            (backward, "weights again of", node.weights is None),
            (scatters, "gradients of", node.gradients is None),
        )
        for (held, what, blocks), of in zip(kinds, found, strict=True):
            for index, k in enumerate(mine):
                if of.seconds[index] > 0 or of.sent[index].any():
                    label = f"{what} bucket {parts[k].bucket}"
                    held[k] = timed_exchange(label, of, index, context=context, blocks=blocks)
    is_told = context.workload.is_sharded and bool(nodes)
    return ShardPasses(
        groups=_groups(parts, forward, backward, context) if forward else (),
        scatters=scatters,
        findings=_findings(context) if is_told else None,
    )


def _measure(node: Sharded, parts: Sequence[GradientPart], context: SimulationContext) -> tuple[Exchanges, ...]:
    """Return the times of gathers before forward and before backward, and of reduce-scatters.

    Gathers have a group of their own (Note [two queues] in the engine), so that each group has its own pauses.
    """
    groups = tuple(part.tensors for part in parts)
    first_s = min(part.ready_s for part in parts)
    key = "shards", node, groups, first_s
    if key not in context.found:
        workload, slowest, num = context.workload, context.slowest, len(groups)
        batch, stands = batch_of(workload, groups, {}, context.num_ranks), not context.overheads.staging_bytes_per_s
        traffic = shard_traffic(node, batch, context.topology, stands=stands)
        before_s = pause_of_gathers_s(workload, slowest, again=node.weights is None or node.weights.regather)
        since_s = pause_of_gradients_s(workload, first_s, 1, slowest)
        context.found[key] = tuple(
            context.measure(rounds, (), num, pause_s)[0]
            for rounds, pause_s in (
                (traffic.before_forward, before_s),
                (traffic.before_backward, 0.0),
                (traffic.after_backward, since_s),
            )
        )
    return context.found[key]


def _groups(
    parts: Sequence[GradientPart],
    forward: Mapping[int, TimedExchange],
    backward: Mapping[int, TimedExchange],
    context: SimulationContext,
) -> tuple[GroupGathers, ...]:
    tensors, backward_s = context.workload.tensors, context.workload.backward_s
    found: list[GroupGathers] = []
    before_s = 0.0
    for bucket in dict.fromkeys(part.bucket for part in parts):
        mine = [k for k, part in enumerate(parts) if part.bucket == bucket]
        ready_s = min(max(parts[k].ready_s for k in mine), backward_s)
        is_root = all(tensors[t].group == ROOT_GROUP for k in mine for t in parts[k].tensors)
        group = GroupGathers(
            ready_s=ready_s,
            share=(ready_s - before_s) / backward_s if backward_s else 0.0,
            is_root=is_root,
            before_forward=tuple(forward[k] for k in mine if k in forward),
            before_backward=() if is_root else tuple(backward[k] for k in mine if k in backward),
        )
        found.append(group)
        before_s = ready_s
    return tuple(found)


def _findings(context: SimulationContext) -> TimedExchange | None:
    """Return the message about gradients, which is not among the bytes that a run counts."""
    told = one_exchange("findings", (gather_of_few(_FINDING_BYTES, context.num_ranks),), context)
    if told is None:
        return None
    unsent = np.zeros_like(told.of.sent)
    return replace(told, of=replace(told.of, sent=unsent, received=unsent))
