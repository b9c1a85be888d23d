"""Node that averages changes with neighbours in a graph instead of all ranks."""

from dataclasses import dataclass, field
from typing import ClassVar

from pliant.spec.exchange import Exchange
from pliant.spec.graph import Graph
from pliant.spec.ranges import Ratio

__all__ = ["NeighborMean"]


@dataclass(frozen=True, kw_only=True)
class NeighborMean(Exchange):
    """Changes averaged with neighbours alone, and ranks' starting points pulled towards their mean (NoLoCo)."""

    made_by: ClassVar[str] = "executors.neighbor_mean:NeighborMeanExecutor"
    pull: Ratio
    """Part of the way to the neighbours' mean point that a step of the outer optimizer at rate 1 goes."""
    graph: Graph = field(default_factory=lambda: Graph(kind="matching"))
    """Who averages with whom in each round; by default pairs at random."""

    @property
    def needs_anchor(self) -> bool:
        return True

    @property
    def differs_by_rank(self) -> bool:
        return True
