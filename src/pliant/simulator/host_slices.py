"""Messages to owners and back by way of the ranks of each host that add up: who sends how much."""

import numpy as np

from pliant.netmodel import Floats, HostExchange
from pliant.spec import Topology

__all__ = ["HostSlices"]


class HostSlices:
    """Slices of `OwnerSlices` on all hosts of a topology: of each rank what it adds up for owners, itself included.

    Args:
        topology: Hosts and their ranks.

    """

    def __init__(self, topology: Topology) -> None:
        sizes = np.array([host.num_ranks for host in topology.hosts])
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # (num_hosts,)
        self._size = np.repeat(sizes, sizes)  # (num_ranks,) ranks of its host
        self._place = np.arange(len(self._size)) - np.repeat(self._starts, sizes)  # (num_ranks,)
        self.num_hosts = len(sizes)

    def added(self, held: Floats) -> Floats:
        """Return what each rank adds up of what ranks own, (num_buckets, num_ranks) both."""
        found = np.zeros(held.shape)
        for size in np.unique(self._size):
            member = (self._place[:, None] % size == np.arange(size)).astype(np.float64)  # (num_ranks, size)
            mine = self._size == size
            found[:, mine] = (held @ member)[:, self._place[mine]]
        return found

    def sums_inside(self, held: Floats) -> HostExchange:
        """Return the messages in which ranks of a host give each other what these add up."""
        mine = self.added(held)
        others = self._size - 1
        return self._inside(out=self._of_host(mine) - mine, into=others * mine, used=(mine > 0).astype(np.float64))

    def spread_inside(self, held: Floats) -> HostExchange:
        """Return those in which each gives all of its host what it has got."""
        back = self.sums_inside(held)
        return self._inside(out=back.into, into=back.out, used=(self.added(held) > 0).astype(np.float64))

    def to_owners(self, payload: Floats) -> HostExchange:
        """Return the messages of sums from all hosts to owners elsewhere, each of one host and one owner."""
        others, used = self.num_hosts - 1, (payload > 0).astype(np.float64)
        return HostExchange(
            out=self.added(payload) - payload,
            into=others * payload,
            num_messages=self.added(used) + (others - 1) * used,
            give=np.ones((len(payload), self.num_hosts)),
            take=np.add.reduceat(payload, self._starts, axis=1),
        )

    def from_owners(self, held: Floats) -> HostExchange:
        """Return the same messages the other way."""
        up = self.to_owners(held)
        return HostExchange(out=up.into, into=up.out, num_messages=up.num_messages, give=up.take, take=up.give)

    def _inside(self, *, out: Floats, into: Floats, used: Floats) -> HostExchange:
        peers = self._of_host(used) - used  # whose slice is not empty
        none = np.zeros((len(out), self.num_hosts))
        return HostExchange(
            out=out, into=into, num_messages=peers + (self._size - 1) * used, give=none, take=none.copy()
        )

    def _of_host(self, x: Floats) -> Floats:
        """Return the sum over the ranks of each rank's host, (num_buckets, num_ranks)."""
        return np.repeat(np.add.reduceat(x, self._starts, axis=1), self._size[self._starts], axis=1)
