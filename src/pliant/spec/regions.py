"""Node that gives changes of weights to servers in two tiers: one of each region, and one of all regions."""

from dataclasses import dataclass, field
from typing import ClassVar

from pliant.spec.exchange import Exchange, Kind, require
from pliant.spec.outer import Outer
from pliant.spec.ranges import Count, Ratio
from pliant.spec.timing import Timing

__all__ = ["RegionServers"]


@dataclass(frozen=True, kw_only=True)
class RegionServers(Exchange):
    """Changes of local steps to a server of each region as they come, and from there to one of all regions (HALoS)."""

    made_by: ClassVar[str] = "executors.region_servers:RegionServersExecutor"
    period: Count = 8
    """Steps of the fastest rank from one of its changes to the next."""
    scaled: bool = True
    """Whether a slower rank makes fewer, in the ratio of the steps that it and the fastest have made."""
    region_ranks: Count = 4
    """Ranks of a region: so many in their order, the first of which serves; the last region has those that are left."""
    region: Outer = field(default_factory=lambda: Outer(lr=0.2, momentum=0.9, every=16))
    """Optimizer of a region's server, for which the change of one rank is a round."""
    arrivals: Count = 32
    """Changes that a region's server takes before what they have come to goes to the server of all regions."""
    world: Outer = field(default_factory=lambda: Outer(lr=0.15, momentum=0.5, every=2))
    """Optimizer of that server, for which the change of one region is a round."""
    pull: Ratio = 0.25
    """Part of the way to the point of all regions that a region's goes when it hears of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, outer in (("region", self.region), ("world", self.world)):
            require(
                not (outer.lr_points or outer.momentum_points),
                "RegionServers",
                f"{name} must have no points, since ranks are at steps of their own and would not agree on their "
                "values; leave them out, or use diloco, whose ranks keep step.",
            )

    @property
    def kind(self) -> Kind:
        return "weights"

    @property
    def timing(self) -> Timing:
        return Timing(period=self.period, pace="free")

    @property
    def meets_in_pairs(self) -> bool:
        return True

    @property
    def differs_by_rank(self) -> bool:
        return True

    def serves(self, rank: int) -> bool:
        """Say whether a rank serves its region."""
        return rank % self.region_ranks == 0

    def server_of(self, rank: int) -> int:
        """Return the rank to which one sends: its region's server, or rank 0, which serves all regions, if it is that.

        >>> node = RegionServers(region_ranks=3)
        >>> [node.server_of(rank) for rank in range(8)]
        [0, 0, 0, 0, 3, 3, 0, 6]
        """
        return 0 if self.serves(rank) else rank - rank % self.region_ranks

    def neighbours(self, num_ranks: int) -> list[set[int]]:
        """Return, for each rank, those that it sends to or hears from."""
        found: list[set[int]] = [set() for _ in range(num_ranks)]
        for rank in range(1, num_ranks):
            server = self.server_of(rank)
            found[rank].add(server)
            found[server].add(rank)
        return found
