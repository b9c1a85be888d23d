"""Checks that graphs, schedules and topologies of a plan are for as many ranks as exchange by them."""

from collections.abc import Iterable
from dataclasses import fields

from pliant.algorithms.executors.scheduled_blocks import require_topology
from pliant.collectives.gossip import require_same_neighbours
from pliant.engine.pair_comms import require_connected
from pliant.engine.places import Places
from pliant.schedules.choice import require_places
from pliant.spec import BetweenGroups, BlockSparse, CodedGossip, Exchange, Graph, Schedule, Topology
from pliant.spec.exchange import Level

__all__ = ["require_num_ranks"]


def require_num_ranks(nodes: Iterable[Exchange], places: Places) -> None:
    """Raise ValueError for what does not fit the number of ranks, or of hosts or racks, that exchange by it.

    Executors would refuse it too, but only once the state under an earlier plan is gone.

    Args:
        nodes: Nodes of a plan.
        places: Hosts and racks of the ranks, as far as the nodes need them.

    """
    for node in dict.fromkeys(nodes):
        _require(node, (), places)


def _require(node: Exchange, levels: tuple[Level, ...], places: Places) -> None:
    if isinstance(node, BetweenGroups):
        levels = (*levels, node.LEVEL)
    size = places.num_exchanging(levels)
    graph: object = getattr(node, "graph", None)
    if isinstance(graph, Graph):
        graph.mixing(0, size)
        if node.meets_in_pairs:
            require_connected(graph.neighbours(size))
        elif isinstance(node, CodedGossip):
            require_same_neighbours(graph, size)
    schedule: object = getattr(node, "schedule", None)
    goes_straight = node.has_owners and size == 1 and isinstance(schedule, Topology)
    if isinstance(schedule, Schedule | Topology) and not goes_straight:
        require_places(schedule, size)
    if isinstance(node, BlockSparse) and node.selection.topology is not None:
        require_topology(node.selection.topology, size)
    for value in (getattr(node, own.name) for own in fields(node)):
        if isinstance(value, Exchange):
            _require(value, levels, places)
