"""What has not done as expected in this run, and is not tried in it again."""

import itertools
from collections.abc import Iterable, Set
from dataclasses import dataclass

from pliant.planner import FAMILIES, Gene, Quality

__all__ = ["Wary", "as_strong"]


@dataclass(frozen=True, kw_only=True)
class Wary(Quality):
    """A budget that some ways of exchanging are not within, whatever was measured of them elsewhere."""

    refused: Set[Gene] = frozenset()
    """May grow while a search goes on."""

    def admits(self, gene: Gene) -> bool:
        return gene not in self.refused and super().admits(gene)


def as_strong(gene: Gene) -> Iterable[Gene]:
    """Return a gene and all of its family that are at least as strong in every setting."""
    grids = FAMILIES[gene.family].grids
    values = [grid[grid.index(gene.settings[key]) :] for key, grid in grids.items()]
    return (Gene(gene.family, dict(zip(grids, each, strict=True))) for each in itertools.product(*values))
