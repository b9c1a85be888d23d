"""Places of a run's ranks: their hosts, their racks, and the network between them."""

import hashlib
from collections.abc import Iterable, Sequence

import torch

from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm, hierarchical_comm
from pliant.engine.comms import Comms
from pliant.engine.launcher_env import hosts_from_torchrun
from pliant.engine.links import measure_links
from pliant.engine.rank_checks import gather_numbers, name_ranks
from pliant.spec import Exchange, Topology
from pliant.spec.exchange import Level

__all__ = ["Places"]

Groups = Sequence[Sequence[int]]


class Places:
    """Hosts and racks of the ranks of a comm, and its links: each is found once, when a plan first needs it.

    Args:
        comm: Ranks that exchange; of a sharded model its replicas.
        device: Device of their tensors.
        hosts: Ranks of each host; torchrun's placement if None.
        rack: Name of the rack in which this rank's host stands; "" if it is not known.

    """

    def __init__(self, comm: Comm, device: torch.device, hosts: Groups | None, rack: str) -> None:
        self._comm, self._device, self._rack = comm, device, rack
        self._hosts: Groups | None = hosts
        self._racks: Groups | None = None
        self._links: Topology | None = None

    def with_levels(self, comms: Comms, nodes: Iterable[Exchange]) -> Comms:
        """Return comms with one for the levels of each node, made of the comm of all. Collective.

        Raises:
            ValueError: Hosts or racks are not known, or a host stands in two racks.

        """
        missing = sorted({node.levels for node in nodes if node.levels} - comms.by_levels.keys())
        made = {levels: self._with(levels, comms.all) for levels in missing}
        return comms._replace(by_levels={**comms.by_levels, **made})

    def num_exchanging(self, levels: tuple[Level, ...]) -> int:
        """Return how many exchange above these levels: all ranks, or one for each host or rack.

        No communication once comms with the levels were made.
        """
        if not levels:
            return self._comm.size
        return len(self._know_racks() if levels[-1] == "rack" else self._know_hosts())

    @property
    def links(self) -> Topology:
        """Network between the ranks; the first use is collective, and measures it."""
        self._links = self._links or measure_links(self._comm, self._hosts)
        return self._links

    def _with(self, levels: tuple[Level, ...], comm: Comm) -> HierarchicalComm:
        if levels == ("rack",):
            return hierarchical_comm(comm, self._know_racks())
        hosts = self._know_hosts()
        if levels == ("host",):
            return hierarchical_comm(comm, hosts)
        return hierarchical_comm(comm, hosts, _hosts_of_racks(hosts, self._know_racks()))

    def _know_hosts(self) -> Groups:
        self._hosts = self._hosts if self._hosts is not None else hosts_from_torchrun(self._comm, self._device)
        if self._hosts is None:
            raise ValueError("this plan is hierarchical, but the hosts are not known; pass hosts= to relax().")
        return self._hosts

    def _know_racks(self) -> Groups:
        """Return the ranks of each rack, in the order of their first ranks: every rank tells the others its own."""
        if self._racks is None:
            number = int.from_bytes(hashlib.sha256(self._rack.encode()).digest()[:7]) if self._rack else -1
            racks: dict[int, list[int]] = {}
            for rank, (of_rank,) in enumerate(gather_numbers([number], self._comm, self._device)):
                racks.setdefault(of_rank, []).append(rank)
            if nameless := racks.get(-1):
                raise ValueError(
                    f"this plan has a level of racks, but {name_ranks(nameless)} named none; pass rack= to relax() on "
                    "every rank, the same name on all ranks of a rack."
                )
            self._racks = list(racks.values())
        return self._racks


def _hosts_of_racks(hosts: Groups, racks: Groups) -> list[list[int]]:
    """Return the hosts of each rack, by their numbers, given the ranks of both.

    Raises:
        ValueError: A host stands in two racks.

    """
    rack_of = {rank: k for k, ranks in enumerate(racks) for rank in ranks}
    found: list[list[int]] = [[] for _ in racks]
    for host, ranks in enumerate(hosts):
        if len({rack_of[rank] for rank in ranks}) > 1:
            raise ValueError(
                f"{name_ranks(ranks)} are on one host, but named different racks; a host stands in one rack, so give "
                "its ranks the same rack=."
            )
        found[rack_of[ranks[0]]].append(host)
    return [held for held in found if held]
