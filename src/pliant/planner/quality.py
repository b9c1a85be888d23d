"""Factors by which a relaxation needs more steps to the same accuracy: measured, not assumed."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pliant.algorithms.registry import ALGORITHMS
from pliant.planner.compositions import composition
from pliant.planner.families import FAMILIES, NAMED_FAMILIES, family_name
from pliant.planner.genome import Gene, Genome, all_of
from pliant.planner.steps_ratios import fitted_ratios

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


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Limit of a plan: at most `budget` times the steps to the same accuracy. 1 admits exact plans alone.

    Time to accuracy is step time times steps; `ratio` is the second factor. A setting that was not measured counts as
    the mildest measured one that is at least as strong in everything; without such, it is admitted under no budget.
    Ratios that were fitted to trainings with this optimizer (`steps_ratios`) come before those of one model with SGD,
    which admit exact plans only with another optimizer. Ratios that are known not to hold elsewhere admit nothing.
    """

    budget: float = 1.0
    ratios: Mapping[Gene, float] = field(default_factory=dict[Gene, float])
    """Measured on the user's own training; they come before ours."""
    optimizer: str = MEASURED_WITH
    """Class of the training's optimizer."""
    unmeasured: bool = False
    """Whether our ratios count with any optimizer, and those that did not hold elsewhere."""
    rejected: Set[Gene] = frozenset()
    """Ways of exchanging that are not within any budget; may grow while a search goes on."""
    equal_weights: bool = False
    """Whether weights and optimizer state must be DDP's on all ranks between two steps."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"a quality budget of {self.budget} would need fewer steps than exact training; use >= 1.")

    def ratio_of(self, gene: Gene) -> float | None:
        """Return the ratio of steps of one gene, or None if neither it nor anything stronger was measured.

        Of a node around another, such as local steps whose changes are averaged in a codec, it is the product of both:
        the one around with an exact average, and the one inside by itself.
        """
        parts = self._parts(gene)
        return math.prod(ratio for _, ratio in parts) if parts else None

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
        if self.equal_weights and gene.changes_state:
            return False
        worst = [self._worst(part, ratio) for part, ratio in self._parts(gene)]
        return bool(worst) and (self.budget == 1 or math.prod(worst) <= self.budget)

    def _worst(self, gene: Gene, ratio: float) -> float:
        """Return the ratio that counts against the budget, infinite where ours does not count or it is rejected."""
        if gene in self.rejected:
            return math.inf
        fitted = fitted_ratios(self.optimizer).get(gene)
        if fitted is not None and gene not in self.ratios:
            return fitted.highest
        ours = self.unmeasured or (self.optimizer == MEASURED_WITH and gene.family not in NOT_ELSEWHERE)
        return ratio if gene.exact or ours or gene in self.ratios else math.inf

    def _parts(self, gene: Gene) -> tuple[tuple[Gene, float], ...]:
        """Return the genes whose ratios together are that of a gene, each with its own; nothing if one is not known."""
        if gene not in self._known_parts:
            self._known_parts[gene] = self._find_parts(gene)
        return self._known_parts[gene]

    def _find_parts(self, gene: Gene) -> tuple[tuple[Gene, float], ...]:
        ratio = self._ratio_of_one(gene)
        if ratio is not None:
            return ((gene, ratio),)
        parts = [(part, self._ratio_of_one(part)) for part in composition(gene) if part != gene]
        known = tuple((part, ratio) for part, ratio in parts if ratio is not None)
        return known if len(known) == len(parts) else ()

    def _ratio_of_one(self, gene: Gene) -> float | None:
        """Return the ratio that was measured of a gene, or of the mildest that is at least as strong."""
        if gene in self.ratios:
            return self.ratios[gene]
        fitted = fitted_ratios(self.optimizer)
        if gene in fitted:
            return fitted[gene].ratio
        if gene in MEASURED_STEPS_RATIO:
            return MEASURED_STEPS_RATIO[gene]
        if gene.family not in NAMED_FAMILIES and gene.exact:
            return 1.0
        alike = self._measured.get(gene.family, ())
        return min((ratio for other, ratio in alike if _milder(gene, other)), default=None)

    @cached_property
    def _measured(self) -> Mapping[str, Sequence[tuple[Gene, float]]]:
        """All genes with a ratio, by family."""
        fitted = {gene: row.ratio for gene, row in fitted_ratios(self.optimizer).items()}
        found: dict[str, list[tuple[Gene, float]]] = {}
        for gene, ratio in {**MEASURED_STEPS_RATIO, **fitted, **self.ratios}.items():
            found.setdefault(gene.family, []).append((gene, ratio))
        return found

    @cached_property
    def _known_parts(self) -> dict[Gene, tuple[tuple[Gene, float], ...]]:
        """Parts that were found before, shared by all limits with these ratios and this optimizer."""
        return _parts_known_with(self.optimizer, frozenset(self.ratios.items()))

    @property
    def sentence(self) -> str:
        """Sentence on what is left out because of the optimizer; empty if nothing is."""
        if self.budget == 1 or self.unmeasured or self.optimizer == MEASURED_WITH:
            return ""
        others = " and plans that were measured with it" if fitted_ratios(self.optimizer) else ""
        return (
            f"Only exact plans{others} are considered, since what others cost in steps was measured with "
            f"{MEASURED_WITH} only, and this training uses {self.optimizer}."
        )


@lru_cache(maxsize=8)
def _parts_known_with(*_: object) -> dict[Gene, tuple[tuple[Gene, float], ...]]:
    return {}


def _milder(one: Gene, other: Gene) -> bool:
    """Say whether a gene is at most as strong as another of its family, in every setting."""
    family = FAMILIES[one.family]
    return all(other.settings[key] in family.at_least(key, value) for key, value in one.settings.items())
