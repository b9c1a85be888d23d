"""Comms of one kind of exchange: all ranks, and the levels of their hosts and racks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.spec import Exchange
from pliant.spec.exchange import Level

__all__ = ["Comms"]


class Comms(NamedTuple):
    """Comms over the same ranks, for exchanges in one order on all ranks (Note [one order of collectives])."""

    all: Comm
    by_levels: Mapping[tuple[Level, ...], HierarchicalComm] = MappingProxyType({})
    """Levels of nodes, from the inside out -> comm; only of those that a node needs."""

    def with_levels(self, node: Exchange) -> HierarchicalComm:
        """Return the comm of the levels that a node has. Raises RuntimeError if nobody has made it."""
        if (found := self.by_levels.get(node.levels)) is None:
            raise RuntimeError("a plan between hosts is carried out before its hosts were looked for.")
        return found

    def of(self, node: Exchange) -> Comm:
        """Return the comm that carries out a node."""
        return self.with_levels(node) if node.levels else self.all
