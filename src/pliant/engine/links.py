"""Network between the ranks of a run, for nodes whose sums go by the fastest schedule."""

from collections.abc import Sequence

from pliant.comm.base import Comm
from pliant.network.probing import probe
from pliant.spec import Topology

__all__ = ["measure_links"]

_PROBE_S = 5.0


def measure_links(comm: Comm, hosts: Sequence[Sequence[int]] | None) -> Topology:
    """Return the network as it is measured now, the same on all ranks; hosts are looked for if None. Collective."""
    budget_s = min(_PROBE_S, comm.timeout_s / 3)
    return probe(comm, budget_s=budget_s, hosts=hosts, connections=comm.connections)
