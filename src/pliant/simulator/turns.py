"""Exchanges that differ from one to the next: how many there are before they repeat."""

from pliant.simulator.context import SimulationContext
from pliant.simulator.rounds import neighbours_of
from pliant.simulator.sharded import shards_of
from pliant.spec import (
    After,
    BetweenGroups,
    BlockSparse,
    CodedGossip,
    Combinator,
    Exchange,
    Gossip,
    LocalSteps,
    NeighborMean,
    Sharded,
    Topology,
)

__all__ = ["num_turns"]

_MOST_TURNS = 16
"""Of a graph that changes for longer than this, only so many exchanges are measured, and taken in turn."""


def num_turns(node: Exchange, context: SimulationContext) -> int:
    """Return how many exchanges of a node differ, before they repeat."""
    return _num_turns(node, context.topology, context.num_ranks, context.workload.num_shards)


def _num_turns(node: Exchange, topology: Topology, size: int, num_shards: int = 0) -> int:
    """Return the same for a node inside of which `size` ranks exchange, where so many divide the model if known."""
    if size == 1:
        return 1
    if isinstance(node, BetweenGroups):
        return _num_turns(node.inner, topology, len(topology.racks if node.LEVEL == "rack" else topology.hosts))
    if isinstance(node, After):
        return _num_turns(node.then, topology, size, num_shards)
    if isinstance(node, Combinator):
        return _num_turns(node.inner, topology, size, num_shards)
    if isinstance(node, Sharded) and node.replicas is not None:
        return _num_turns(node.replicas, topology, len(shards_of(node, topology, num_shards)))
    if isinstance(node, LocalSteps):
        return _num_turns(node.averaging, topology, size)
    if isinstance(node, BlockSparse) and node.selection.agreement == "leader":
        return min(size, _MOST_TURNS)  # of the leader; each is counted as the mean of them
    if isinstance(node, (Gossip, CodedGossip, NeighborMean)):
        return min(_num_exchanges(node, size), _MOST_TURNS)
    return 1


def _num_exchanges(node: Gossip | CodedGossip | NeighborMean, size: int) -> int:
    """Return how many exchanges along a graph differ; in pairs each rank asks one neighbour after another."""
    graph = node.graph
    if not node.meets_in_pairs:
        return graph.period(size) or _MOST_TURNS
    return size - 1 if graph.joins_all else max(1, *map(len, neighbours_of(graph, size)))
