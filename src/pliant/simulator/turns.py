"""Exchanges that differ from one to the next: how many there are before they repeat."""

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


def num_turns(node: Exchange, topology: Topology, size: int) -> int:
    """Return how many exchanges of `size` ranks differ, before they repeat."""
    if isinstance(node, BetweenGroups):
        return num_turns(node.inner, topology, len(topology.racks if node.LEVEL == "rack" else topology.hosts))
    if isinstance(node, After):
        return num_turns(node.then, topology, size)
    if isinstance(node, Combinator):
        return num_turns(node.inner, topology, size)
    if isinstance(node, Sharded) and node.replicas is not None:
        return num_turns(node.replicas, topology, len(topology.hosts))
    if isinstance(node, LocalSteps):
        return num_turns(node.averaging, topology, size)
    if isinstance(node, BlockSparse) and node.selection.agreement == "leader":
        return min(size, _MOST_TURNS)  # of the leader; each is counted as the mean of them
    if isinstance(node, (Gossip, CodedGossip, NeighborMean)):
        return min(node.graph.period(size) or _MOST_TURNS, _MOST_TURNS)
    return 1
