"""Plans and exchanges that are rejected for the rest of a run."""

import itertools
import logging
from collections.abc import Iterable, Mapping

from pliant.planner import FAMILIES, Gene, Genome
from pliant.spec import SyncPlan

__all__ = ["UNDONE", "RejectedPlans", "at_least_as_lossy"]

_log = logging.getLogger("pliant")

UNDONE = "A plan failed in its trial, which was undone"
"""Beginning of the sentence on a failed trial."""


def at_least_as_lossy(gene: Gene) -> Iterable[Gene]:
    """Return a gene and all of its family that are at least as strong in every setting."""
    family = FAMILIES[gene.family]
    values = [family.at_least(key, gene.settings[key]) for key in family.grids]
    return (Gene(gene.family, dict(zip(family.grids, each, strict=True))) for each in itertools.product(*values))


class RejectedPlans:
    """Ways of exchanging that are refused, and, in a sentence each, the plans that have failed.

    Args:
        rank: Of this process; the first logs.
        spared: What every plan may have in it, and is never refused.

    """

    def __init__(self, rank: int, spared: Gene) -> None:
        self._rank, self._spared = rank, spared
        self.genes: set[Gene] = set()
        self.failures: list[str] = []
        """Failed plans with their reasons, a sentence each; the same on all ranks."""

    def add(self, genes: Iterable[Gene]) -> None:
        """Refuse these, and all of their families that are as strong."""
        for gene in genes:
            if gene not in self.genes:  # else all that is as strong is there already
                self.genes.update(at_least_as_lossy(gene))

    def note_failure(self, what: str, why: str, plan: SyncPlan, among: Mapping[str, Genome]) -> str:
        """Say that a plan has failed, on all ranks, and refuse what is in it.

        Args:
            what: How a sentence begins that ends with "is not tried again".
            why: It has failed.
            plan: Which.
            among: Hash of a plan -> its genes, on the ranks that know them.

        """
        text = f"{what}, and is not tried again in this run: {why}. It was {plan}"
        self.failures.append(text)
        if self._rank == 0:
            _log.warning("auto: %s", text)
        if plan.hash in among:
            self.add(gene for gene in among[plan.hash].genes if gene != self._spared)
        return text
