"""A node and some buckets -> what goes over the network for them, and what is computed, as the engine does it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pliant.netmodel import BucketBatch, Floats, Round, passes, work
from pliant.simulator.collective_rounds import among_ranks
from pliant.simulator.levels import among_groups, groups_of, rounds_inside, side_by_side, slice_numels, sums_inside
from pliant.simulator.regions import region_rounds
from pliant.simulator.rounds import (
    all_gather_rounds,
    all_reduce_rounds,
    block_rounds,
    gossip_rounds,
    low_rank_rounds,
)
from pliant.simulator.scheduled import by_schedule
from pliant.simulator.scheduled_codes import coded_sum_rounds
from pliant.simulator.scheduled_owners import sums_and_norms
from pliant.simulator.sharded import among_replicas, exchanged, of_all_shards, shard_traffic, shards_of
from pliant.simulator.visible import visible_rounds
from pliant.spec import (
    Acco,
    After,
    AllGather,
    AllReduce,
    BetweenGroups,
    BetweenHosts,
    BetweenRacks,
    BlockSparse,
    CodedGossip,
    CompressedMomentum,
    Custom,
    DecoupledMomentum,
    Delayed,
    Every,
    Exchange,
    Gossip,
    LocalSteps,
    LowRank,
    MomentumDifferences,
    NeighborMean,
    OwnedOptimizer,
    ParameterServer,
    RegionServers,
    ScatterGather,
    Sharded,
    ShardedOptimizer,
    Topology,
    VisibleChanges,
)

__all__ = ["TRAFFIC", "ExchangeTraffic", "Moves", "inside_groups", "traffic_beside_shards", "traffic_of"]


@dataclass(frozen=True, kw_only=True)
class ExchangeTraffic:
    """An exchange: rounds that are waited for, and rounds that follow once the result has been handed over."""

    task: tuple[Round, ...]
    rest: tuple[Round, ...] = ()


@runtime_checkable
class Moves(Protocol):
    """A node with a file of its own, which says itself what it moves; for those of `spec`, `TRAFFIC` does."""

    def moves(self, batch: BucketBatch, num_ranks: int) -> Sequence[Exchange | Round]:
        """Return what moves, one after another: rounds, or nodes, each of which stands for what it moves."""
        ...


def traffic_of(node: Exchange, batch: BucketBatch, topology: Topology, turn: int = 0) -> ExchangeTraffic:
    """Return what an exchange of a node moves, on all ranks of a topology; after its warm-up, if it has one.

    Args:
        node: How it is exchanged.
        batch: What is exchanged.
        topology: Who there is; more than one rank.
        turn: How many exchanges were before, for graphs that change.

    Raises:
        ValueError: The algorithm is not Pliant's, so nobody knows what it sends.

    """
    return _traffic_of(node, exchanged(node, batch), topology, turn)


def traffic_beside_shards(node: Exchange, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Return the same without what brings shards together: of a sharded node what its replicas send each other."""
    if not isinstance(node, Sharded):
        return traffic_of(node, batch, topology, turn)
    return _between_replicas(node, exchanged(node, batch), topology, turn)


def _traffic_of(node: Exchange, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    if isinstance(node, Moves):
        return _said(node, batch, topology, turn)
    if type(node) not in TRAFFIC:
        raise ValueError(f"nobody knows what {type(node).__name__} sends; give it `moves`, as CONTRIBUTING.md says.")
    return TRAFFIC[type(node)](node, batch, topology, turn)


def _said(node: Moves, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Put together what a node says of itself."""
    parts = [
        _traffic_of(part, batch, topology, turn) if isinstance(part, Exchange) else ExchangeTraffic(task=(part,))
        for part in node.moves(batch, topology.num_ranks)
    ]
    return ExchangeTraffic(task=tuple(r for p in parts for r in p.task), rest=tuple(r for p in parts for r in p.rest))


def inside_groups(num_bytes: Floats, node: Exchange, topology: Topology) -> list[Round]:
    """Return an exact sum of `num_bytes`, (num_buckets,), over the ranks of each of a node's innermost groups."""
    return sums_inside(num_bytes, [tuple(ranks.tolist()) for ranks in groups_of(node.levels[0], topology)])


def _custom(node: Custom, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    raise ValueError(
        f"the plan has {node}, an algorithm of your own, and only it knows what it sends and computes; simulate a plan "
        "without it, or measure this one."
    )


def _inside(node: Every, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    return _traffic_of(node.inner, batch, topology, turn)


def _after(node: After, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    return _traffic_of(node.then, batch, topology, turn)


def _delayed(node: Delayed, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    exchange = _traffic_of(node.inner, batch, topology, turn)
    return ExchangeTraffic(task=(work(passes(batch, 3)),), rest=exchange.task + exchange.rest)


def _differences(
    node: LocalSteps | MomentumDifferences, batch: BucketBatch, topology: Topology, turn: int
) -> ExchangeTraffic:
    """Count the difference to where all set out, its average, and the outer step; or the same of a momentum."""
    average = _traffic_of(node.averaging, batch, topology, turn)
    return ExchangeTraffic(task=(work(passes(batch, 2)), *average.task, work(passes(batch, 3))), rest=average.rest)


def _neighbor_mean(node: NeighborMean, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Count gossip of changes beside starting points, which are taken off before and added after."""
    around = work(passes(batch, 1))
    return ExchangeTraffic(task=(around, *gossip_rounds(node, batch, topology.num_ranks, turn), around))


def _between_groups(node: BetweenGroups, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Sum inside each group, exchange slices between groups side by side, and gather; or, of weights, without sums."""
    if isinstance(node.inner, OwnedOptimizer):
        return ExchangeTraffic(task=tuple(sums_and_norms(node.inner, batch, topology, by_hosts=True)))
    groups, among = groups_of(node.LEVEL, topology), among_groups(node.LEVEL, topology)
    num_slices = min(map(len, groups)) if node.slices_freely else 1
    up, down = rounds_inside(batch, groups, num_slices)
    found: list[ExchangeTraffic] = []
    for place, numel in enumerate(slice_numels(batch.numel, num_slices) if len(groups) > 1 else ()):
        mine = batch if num_slices == 1 else replace(batch, numel=numel, shapes=())
        between, ranks = _traffic_of(node.inner, mine, among, turn), np.array([group[place] for group in groups])
        task, rest = (among_ranks(rounds, ranks, topology.num_ranks) for rounds in (between.task, between.rest))
        found.append(ExchangeTraffic(task=tuple(task), rest=tuple(rest)))
    task, rest = side_by_side([each.task for each in found]), side_by_side([each.rest for each in found])
    return ExchangeTraffic(task=(*([] if node.exchanges_weights else up), *task, *down), rest=tuple(rest))


def _coded_gossip(node: CodedGossip, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Count gossip of differences; at gamma 0 messages follow once the own replica has been handed over."""
    rounds = gossip_rounds(node, batch, topology.num_ranks, turn)
    if node.meets_in_pairs:
        return ExchangeTraffic(task=tuple(rounds))
    (around,) = rounds
    if node.gamma:
        return ExchangeTraffic(task=(around,))
    return ExchangeTraffic(task=(replace(around, messages=None, after={}),), rest=(replace(around, before={}),))


def _coded_sum(node: ScatterGather, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    fades = [work(passes(batch, 1))] if node.decay < 1 else []
    return ExchangeTraffic(task=(*fades, *coded_sum_rounds(node, batch, topology)))


def _momentum(node: CompressedMomentum, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Count the averaging, which comes after a warm-up."""
    return _coded_sum(node.averaging, batch, topology, turn)


def _block_sparse(node: BlockSparse, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    coded_sum = partial(coded_sum_rounds, topology=topology, may_forward=True)
    rounds = block_rounds(node, batch, topology.num_ranks, coded_sum)
    return ExchangeTraffic(task=tuple(by_schedule(rounds, node.schedule, topology)))


def _owned(node: Any, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    return ExchangeTraffic(task=tuple(sums_and_norms(node, batch, topology)))


def _sharded(node: Sharded, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Count all that shards and replicas send for a bucket in a step."""
    shards, between = shard_traffic(node, batch, topology), _between_replicas(node, batch, topology, turn)
    gathers = (*shards.before_forward, *shards.before_backward)
    return ExchangeTraffic(task=(*shards.after_backward, *between.task, *gathers), rest=between.rest)


def _between_replicas(node: Sharded, batch: BucketBatch, topology: Topology, turn: int) -> ExchangeTraffic:
    """Count what replicas send of a bucket: each rank a shard's part of it, all at once."""
    shards, num_ranks = shards_of(node, topology, batch.num_shards), topology.num_ranks
    if node.replicas is None or len(shards) == 1:
        return ExchangeTraffic(task=())
    num_shards = len(shards[0])
    shapes = tuple(tuple((-(-s[0] // num_shards), *s[1:]) if s else s for s in each) for each in batch.shapes)
    mine = replace(batch, numel=np.ceil(batch.numel / num_shards), shapes=shapes)
    between = traffic_of(node.replicas, mine, among_replicas(topology, shards), turn)
    task, rest = (tuple(of_all_shards(rounds, shards, num_ranks)) for rounds in (between.task, between.rest))
    return ExchangeTraffic(task=task, rest=rest)


def _among_all(
    rounds: Callable[[Any, BucketBatch, int, int], list[Round]],
) -> Callable[[Any, BucketBatch, Topology, int], ExchangeTraffic]:
    """Return what asks only for the number of ranks as what is given a topology."""
    return lambda node, batch, topology, turn: ExchangeTraffic(
        task=tuple(rounds(node, batch, topology.num_ranks, turn))
    )


def _scheduled(
    rounds: Callable[[Any, BucketBatch, int, int], list[Round]],
) -> Callable[[Any, BucketBatch, Topology, int], ExchangeTraffic]:
    """Return the same for a node whose sums may go by a schedule."""
    return lambda node, batch, topology, turn: ExchangeTraffic(
        task=tuple(by_schedule(rounds(node, batch, topology.num_ranks, turn), node.schedule, topology))
    )


TRAFFIC: Mapping[type[Exchange], Callable[[Any, BucketBatch, Topology, int], ExchangeTraffic]] = {
    AllReduce: _scheduled(all_reduce_rounds),
    ScatterGather: _coded_sum,
    AllGather: _among_all(all_gather_rounds),
    BlockSparse: _block_sparse,
    LowRank: _scheduled(low_rank_rounds),
    DecoupledMomentum: _among_all(all_gather_rounds),
    VisibleChanges: _among_all(visible_rounds),
    CompressedMomentum: _momentum,
    MomentumDifferences: _differences,
    ShardedOptimizer: _owned,
    Acco: _owned,
    ParameterServer: _owned,
    Gossip: _among_all(gossip_rounds),
    NeighborMean: _neighbor_mean,
    RegionServers: _among_all(region_rounds),
    CodedGossip: _coded_gossip,
    Custom: _custom,
    LocalSteps: _differences,
    Every: _inside,
    Delayed: _delayed,
    BetweenHosts: _between_groups,
    BetweenRacks: _between_groups,
    After: _after,
    Sharded: _sharded,
}
"""Type of a node of `spec` -> what counts its messages and work."""
