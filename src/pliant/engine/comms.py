"""Comms of one kind of exchange: all ranks, and the two levels of their hosts."""

from typing import NamedTuple

from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.spec import Exchange

__all__ = ["Comms"]


class Comms(NamedTuple):
    """Comms over the same ranks, for exchanges in one order on all ranks (Note [one order of collectives])."""

    all: Comm
    hosts: HierarchicalComm | None = None
    """Comm of two levels, inside hosts and between them; None as long as no node needs hosts."""

    @property
    def by_hosts(self) -> HierarchicalComm:
        """The comm of two levels. Raises RuntimeError if no node has asked for it."""
        if self.hosts is None:
            raise RuntimeError("a plan between hosts is carried out before its hosts were looked for.")
        return self.hosts

    def of(self, node: Exchange) -> Comm:
        """Return the comm that carries out a node."""
        return self.by_hosts if node.needs_hosts else self.all
