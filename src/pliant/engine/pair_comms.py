"""Connections between neighbours, a comm for each pair."""

from collections.abc import Sequence

from pliant.comm.base import Comm
from pliant.spec import Graph

__all__ = ["pair_comms", "require_connected"]


def pair_comms(neighbours: Sequence[set[int]], comm: Comm) -> dict[int, Comm]:
    """Return a comm for each neighbour of this rank, of these two ranks alone. Collective.

    So a connection that breaks, or a neighbour that is stopped, leaves the others alone. Pairs that have no rank in
    common are made at once.

    Args:
        neighbours: Neighbours of each rank.
        comm: Comm of all ranks.

    """
    comms: dict[int, Comm] = {}
    rounds = Graph(kind="round_robin")
    for k in range(rounds.period(comm.size)):
        rows = rounds.mixing(k, comm.size)
        pairs = [[i, j] for i, row in enumerate(rows) for j in row if i < j and j in neighbours[i]]
        own = comm.split(pairs) if pairs else None
        if own is not None:
            peer = next(i + j - comm.rank for i, j in pairs if comm.rank in (i, j))
            comms[peer] = own
    return comms


def require_connected(neighbours: Sequence[set[int]]) -> None:
    """Raise ValueError for neighbours among whom some ranks never hear of others."""
    reached, ahead = {0}, [0]
    while ahead:
        found = neighbours[ahead.pop()] - reached
        reached |= found
        ahead += found
    if apart := sorted(set(range(len(neighbours))) - reached):
        raise ValueError(
            f"the graph leads from rank 0 to ranks {sorted(reached)} only, and never to {apart}, so that their weights "
            "would never come together; use a graph in which every rank is reached."
        )
