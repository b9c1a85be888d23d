"""Nodes around other nodes: exact inside hosts, and inside racks, whose links are fast; anything between them."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.spec.combinators import Combinator
from pliant.spec.exchange import Level, require
from pliant.spec.gradients import BlockSparse

__all__ = ["BetweenGroups", "BetweenHosts", "BetweenRacks"]


@dataclass(frozen=True, kw_only=True)
class BetweenGroups(Combinator):
    """Base of levels: exact sums inside groups of ranks, the node inside between the groups."""

    LEVEL: ClassVar[Level]

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        scheduled = any(isinstance(n, BlockSparse) and n.selection.topology is not None for n in self.inner.walk())
        require(
            not scheduled,
            name,
            f"inner must have no topology, which is of all ranks, while only {self.LEVEL}s exchange; leave one of the "
            "two out.",
        )
        require(
            not self.inner.meets_in_pairs,
            name,
            f"inner must not meet in pairs at a free pace, got {type(self.inner.core).__name__}, since the ranks of a "
            f"{self.LEVEL} make the same steps; use pace='lockstep', or async_average, or leave {name} out.",
        )

        require(
            self.inner.timing.quorum is None,
            name,
            f"inner must have no quorum, got {self.inner.timing.quorum}, for which each rank's period counts, while "
            f"one rank of a {self.LEVEL} exchanges the weights of all; use async_average, or leave {name} out.",
        )

    @property
    def levels(self) -> tuple[Level, ...]:
        return (self.LEVEL, *self.inner.levels)

    @property
    def averages_in_host(self) -> bool:
        return self.exchanges_weights

    @property
    def slices_freely(self) -> bool:
        return self.inner.slices_freely


@dataclass(frozen=True, kw_only=True)
class BetweenHosts(BetweenGroups):
    """Exact sums inside each host, the node inside between hosts; BetweenRacks inside makes a level of racks."""

    made_by: ClassVar[str] = "executors.between_hosts:BetweenGroupsExecutor"
    ONCE: ClassVar[str] = "but hosts are one level; above it are racks, as in BetweenHosts(inner=BetweenRacks(...))"
    LEVEL: ClassVar[Level] = "host"
    TAKES_OWNERS: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.inner.staleness_bound is None,
            "BetweenHosts",
            "inner must not let ranks be at steps of their own, since the ranks of a host add up the gradients of one "
            f"step, got {type(self.inner.core).__name__}; use ShardedOptimizer, or leave BetweenHosts out.",
        )
        above = [node for node in self.inner.walk() if isinstance(node, BetweenRacks)]
        require(
            not any(node.exchanges_weights for node in above),
            "BetweenHosts",
            "inner must not exchange weights between racks, since gradients would be averaged inside hosts only; leave "
            "BetweenHosts out, and BetweenRacks averages them over all ranks of a rack.",
        )


@dataclass(frozen=True, kw_only=True)
class BetweenRacks(BetweenGroups):
    """Exact sums inside each rack, the node inside between racks."""

    made_by: ClassVar[str] = "executors.between_hosts:BetweenGroupsExecutor"
    ONCE: ClassVar[str] = "but racks are one level"
    LEVEL: ClassVar[Level] = "rack"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.inner.levels,
            "BetweenRacks",
            "inner must not be between hosts, since racks hold hosts; write BetweenHosts(inner=BetweenRacks(...)).",
        )
        require(
            not self.inner.needs_links,
            "BetweenRacks",
            "inner must not have schedule='auto', since links are measured between hosts only; leave it 'ring', or "
            "give a schedule for as many ranks as there are racks.",
        )
