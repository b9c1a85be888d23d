"""Factors by which a relaxation needs more steps to the same accuracy: measured, not assumed."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from pliant.algorithms.registry import ALGORITHMS
from pliant.planner.compositions import composition
from pliant.planner.families import NAMED_FAMILIES, family_name
from pliant.planner.genome import Gene, Genome, all_of
from pliant.planner.steps_ratios import UNKNOWN_SCALE, Scale, fitted_ratios, refused_around, row_for

__all__ = ["MEASURED_STEPS_RATIO", "MEASURED_WITH", "NOT_ELSEWHERE", "Quality"]

MEASURED_STEPS_RATIO: dict[Gene, float] = {
    Gene(family, settings): ratio
    for family, settings, ratio in (
        ("exact", {"bits": 32}, 1.0),
        ("exact", {"bits": 16}, 1.0),
        ("late", {"bits": 32}, 3.3),
        ("late", {"bits": 16}, 3.3),
        ("quantized", {"bits": 8}, 1.04),
        ("quantized", {"bits": 4}, 1.04),
        ("quantized", {"bits": 2}, 1.36),
        ("fed_back", {"bits": 4}, 1.04),
        ("fed_back", {"bits": 1}, 1.5),
        ("low_rank", {"rank": 4}, 1.06),
        ("low_rank", {"rank": 1}, 2.2),
        ("sparse", {"choice": "topk", "ratio": 0.01}, 1.26),
        ("sparse", {"choice": "blocktopk", "ratio": 0.01}, 1.61),
        ("sparse", {"choice": "randomk", "ratio": 0.01}, 1.9),
        ("tasc", {"agreement": "leader", "ratio": 0.1}, 1.01),
        ("tasc", {"agreement": "leader", "ratio": 0.03}, 1.41),
        ("tasc", {"agreement": "leader", "ratio": 0.01}, 1.68),
        ("tasc", {"agreement": "leader", "ratio": 1 / 130}, 2.25),
        ("tasc", {"agreement": "global", "ratio": 0.01}, 2.81),
        ("tasc", {"agreement": "global", "ratio": 1 / 130}, 3.01),
        ("torch_shards", {}, 1.0),
        ("exact_shards", {"bits": 16, "regather": "no"}, 1.0),
        # A reduce-scatter is the first half of these exchanges, which code the mean a second time.
        ("unbiased_shards", {"bits": 8, "weights": "exact"}, 1.04),
        ("coded_shards", {"bits": 4, "residual": "full", "weights": "exact"}, 1.04),
        ("coded_shards", {"bits": 1, "residual": "full", "weights": "exact"}, 1.5),
        # With weights coded as well they came to 1.00 (sharded_ratios); no plan counts less than its gradients alone.
        ("unbiased_shards", {"bits": 8, "weights": "int8"}, 1.04),
        ("coded_shards", {"bits": 4, "residual": "full", "weights": "differences"}, 1.04),
        ("gossip", {"every": 1, "graph": "one_peer"}, 1.04),
        ("choco", {"bits": 8, "graph": "exponential"}, 1.0),
        ("local", {"every": 8}, 1.07),
        ("diloco", {"bits": 32, "delay_steps": 0, "every": 32, "fragments": 1}, 1.23),
        ("diloco", {"bits": 4, "delay_steps": 0, "every": 32, "fragments": 1}, 1.23),
        ("diloco", {"bits": 4, "delay_steps": 2, "every": 32, "fragments": 4}, 1.21),
    )
} | {all_of(family_name(name))[-1]: row.steps_ratio for name, row in ALGORITHMS.items() if row.steps_ratio is not None}
"""Steps to 85 % over those of bfloat16 DDP, mean of three seeds (benchmarks/results, accuracy_* and sharded_ratios_*):
one small model, its first 350 steps, where relaxations weigh most, with SGD. A user's own ratios take their place."""

MEASURED_WITH = "SGD"
"""The optimizer of all these trainings."""

NOT_ELSEWHERE = frozenset({"diloco"})
"""Families whose ratios did not hold in other trainings with that optimizer: an outer momentum needs many exchanges,
and on small models the loss was 6 to 25 % higher than DDP's after 1.5 times its steps (benchmarks/auto_models)."""


class _Figure(NamedTuple):
    """Ratio of a gene that is known by itself."""

    gene: Gene
    ratio: float
    worst: float
    """Ratio that counts against the budget."""
    is_borrowed: bool = False
    """Whether it is that of one small model with SGD."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Limit of a plan: at most `budget` times the steps to the same accuracy. 1 admits exact plans alone.

    Time to accuracy is step time times steps; `ratio` is the second factor. A setting that was not measured counts as
    the mildest measured one that is at least as strong in everything; without such, it is admitted under no budget.
    Ratios that were fitted to trainings with this optimizer (`steps_ratios`) come before those of one model with SGD,
    which admit exact plans only with another optimizer. Ratios that are known not to hold elsewhere admit nothing, nor
    do those of trainings on fewer ranks or larger models. What needs another optimizer is not admitted either.
    """

    budget: float = 1.0
    ratios: Mapping[Gene, float] = field(default_factory=dict[Gene, float])
    """Measured on the user's own training; they come before ours."""
    optimizer: str = MEASURED_WITH
    """Class of the training's optimizer; of several all, as in 'AdamW and Muon'."""
    scale: Scale = UNKNOWN_SCALE
    """Size of the training."""
    unmeasured: bool = False
    """Whether our ratios count with any optimizer, and those that did not hold elsewhere."""
    rejected: Set[Gene] = frozenset()
    """Ways of exchanging that are not within any budget; may grow while a search goes on."""
    equal_weights: bool = False
    """Whether weights and optimizer state must be DDP's on all ranks between two steps."""

    def __post_init__(self) -> None:
        if not self.budget >= 1:  # so that NaN is refused too
            raise ValueError(f"a quality budget of {self.budget} would need fewer steps than exact training; use >= 1.")

    def ratio_of(self, gene: Gene) -> float | None:
        """Return the ratio of steps of one gene, or None if neither it nor anything stronger was measured.

        Of a node around another, such as local steps whose changes are averaged in a codec, it is the product of both:
        the one around with an exact average, and the one inside by itself.
        """
        parts = self._parts(gene)
        return math.prod(part.ratio for part in parts) if parts else None

    def ratio(self, genes: Genome) -> float | None:
        """Return that of a plan: the worst of its genes, since what converges last decides."""
        found = [self.ratio_of(gene) for gene in genes.genes]
        known = [ratio for ratio in found if ratio is not None]
        return max(known) if len(known) == len(found) else None

    def factor(self, genes: Genome) -> float:
        """Return the factor of a plan's step time: its ratio, or 1 if it is not known."""
        return self.ratio(genes) or 1.0

    def admits(self, gene: Gene) -> bool:
        """Say whether a way of exchanging is within the budget; within a budget of 1 only what is exact.

        What was fitted to several tasks with this optimizer is within it on the worst of them.
        """
        if gene in self.rejected or (self.budget == 1 and not gene.exact):
            return False
        if (self.equal_weights and gene.changes_state) or not gene.fits_optimizer(self.optimizer):
            return False
        worst = [self._worst(part) for part in self._parts(gene)]
        return bool(worst) and (self.budget == 1 or math.prod(worst) <= self.budget)

    def _worst(self, part: _Figure) -> float:
        """Return the ratio that counts against the budget, infinite where ours does not count or it is rejected."""
        with_sgd = self.optimizer == MEASURED_WITH and part.gene.family not in NOT_ELSEWHERE
        counts = not part.is_borrowed or self.unmeasured or with_sgd
        return part.worst if counts and part.gene not in self.rejected else math.inf

    def _parts(self, gene: Gene) -> tuple[_Figure, ...]:
        """Return the figures whose ratios together are that of a gene; nothing if one is not known."""
        if gene not in self._known_parts:
            self._known_parts[gene] = self._find_parts(gene)
        return self._known_parts[gene]

    def _find_parts(self, gene: Gene) -> tuple[_Figure, ...]:
        own = self._figure_of(gene)
        if own is not None:
            return (own,)
        parts = [self._figure_of(part) for part in composition(gene) if part != gene]
        known = tuple(part for part in parts if part is not None)
        return known if len(known) == len(parts) else ()

    def _figure_of(self, gene: Gene) -> _Figure | None:
        """Return what was measured of a gene, or of the mildest that is at least as strong."""
        if gene in self.ratios:
            return _Figure(gene, self.ratios[gene], self.ratios[gene])
        row = row_for(gene, self.optimizer, self.scale)
        if row is not None:
            return _Figure(gene, row.ratio, row.worst)
        if gene.family not in NAMED_FAMILIES and gene.exact:
            return _Figure(gene, 1.0, 1.0)
        refused = refused_around(gene, self.optimizer, self.scale)  # whatever it was on one small model
        if refused is not None and not any(gene.is_within(other) for other in self.ratios):
            return _Figure(gene, refused[1].ratio, math.inf)
        found = [
            _Figure(other, ratio, ratio, is_borrowed=table is MEASURED_STEPS_RATIO and not gene.exact)
            for table in (self.ratios, MEASURED_STEPS_RATIO)
            for other, ratio in table.items()
            if gene.is_within(other)
        ]
        best = min(found, key=lambda figure: (figure.gene != gene, figure.ratio), default=None)
        return None if best is None else best._replace(gene=gene)

    @cached_property
    def _known_parts(self) -> dict[Gene, tuple[_Figure, ...]]:
        """Parts that were found before, shared by all limits with these ratios, this optimizer and this size."""
        return _parts_known_with(self.optimizer, self.scale, frozenset(self.ratios.items()))

    @property
    def sentence(self) -> str:
        """Sentence on what is left out because of the optimizer; empty if nothing is."""
        if self.budget == 1 or self.unmeasured or self.optimizer == MEASURED_WITH:
            return ""
        counts = any(not row.beyond for row in fitted_ratios(self.optimizer, self.scale).values())
        others = " and plans that were measured with it" if counts else ""
        return (
            f"Only exact plans{others} are considered, since what others cost in steps was measured with "
            f"{MEASURED_WITH} only, and this training uses {self.optimizer}."
        )


@lru_cache(maxsize=8)
def _parts_known_with(*_: object) -> dict[Gene, tuple[_Figure, ...]]:
    return {}
