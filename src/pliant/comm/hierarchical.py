"""Levels: ranks inside a group, such as a host, and those of the same place in all groups."""

from collections.abc import Sequence

from torch import Tensor

from pliant.comm.base import Comm, ReduceOp, Work
from pliant.comm.works import EndedWork
from pliant.comm.wrapped import WrappedComm

__all__ = ["HierarchicalComm", "hierarchical_comm", "levels_of"]


class HierarchicalComm(WrappedComm):
    """One comm made of an inner one per group, such as a host, and outer ones: of their first ranks, their second, ...

    An outer one may have levels itself. `collectives.HierarchicalAverage` uses all of them. all_reduce and
    reduce_scatter go through the leaders, the first ranks; all other calls use the flat comm.
    """

    def __init__(self, flat: Comm, inner: Comm, outer: Comm | None, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(flat)
        self.flat = flat
        """All ranks, alike."""
        self.groups = groups
        """Ranks of each group."""
        self.inner = inner
        """The ranks of this group, in the order in which they were given; rank 0 of it leads."""
        self.outer = outer
        """The ranks of this rank's place in all groups, in the order of groups; None for a place not in all of them."""

    @property
    def num_groups(self) -> int:
        """Groups, such as hosts."""
        return len(self.groups)

    @property
    def num_places(self) -> int:
        """Ranks of the smallest group: so many can exchange with all other groups at once."""
        return min(map(len, self.groups))

    @property
    def leaders(self) -> Comm | None:
        """The first rank of each group; None on other ranks."""
        return self.outer if self.inner.rank == 0 else None

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        self.inner.all_reduce(x, op).wait()
        if self.leaders is not None:
            self.leaders.all_reduce(x, op).wait()
        return self.inner.broadcast(x, 0)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        total = x.clone()
        self.all_reduce(total, op).wait()
        out.copy_(total.view(self.size, -1)[self.rank].view_as(out))
        return EndedWork()

    def close(self) -> None:
        self.inner.close()
        if self.outer is not None:
            self.outer.close()
        if isinstance(self.outer, HierarchicalComm):  # nobody else has it
            self.outer.flat.close()


def levels_of(comm: Comm) -> HierarchicalComm:
    """Return a comm of levels as what it is, or raise TypeError."""
    if not isinstance(comm, HierarchicalComm):
        raise TypeError(f"a hierarchical algorithm needs to know the hosts, but got a {type(comm).__name__}.")
    return comm


def hierarchical_comm(comm: Comm, hosts: Sequence[Sequence[int]], *above: Sequence[Sequence[int]]) -> HierarchicalComm:
    """Return the comm of levels over `comm`. Collective.

    Args:
        comm: All ranks.
        hosts: Ranks of each host, or of each group of another kind.
        above: Groups of those groups by their numbers, such as the hosts of each rack; and so on.

    Raises:
        ValueError: The hosts do not hold every rank exactly once.

    """
    held = sorted(rank for ranks in hosts for rank in ranks)
    if held != list(range(comm.size)):
        raise ValueError(f"the hosts hold ranks {held}, but the group has ranks 0..{comm.size - 1}; name each once.")
    inner = comm.split(hosts, 1)
    outer = comm.split([[ranks[place] for ranks in hosts] for place in range(min(map(len, hosts)))], 1)
    if inner is None:
        raise RuntimeError(f"rank {comm.rank} is on no host, though hosts hold {held}.")
    if outer is not None and above:
        outer = hierarchical_comm(outer, *above)
    return HierarchicalComm(comm, inner, outer, hosts)
