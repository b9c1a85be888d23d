"""Frontier of plans: the best predicted one at each limit of steps, with its risk; and a search by prediction alone."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pliant.planner.baselines import measured_genomes
from pliant.planner.compositions import searched_genes
from pliant.planner.genome import Genome
from pliant.planner.quality import Quality
from pliant.planner.risk import Risk, is_losing, risk_of
from pliant.planner.space import Space
from pliant.planner.steps_ratios import Scale
from pliant.spec import Topology, Workload
from pliant.spec.units import format_time

__all__ = [
    "FRONTIER_LIMITS",
    "FrontierPoint",
    "StepTimes",
    "frontier",
    "frontier_text",
    "remembering",
    "search_predicted",
]

FRONTIER_LIMITS = (1.0, 1.1, 1.5)
"""Limits of the ratio of steps, one a line of the frontier; 1 admits exact plans alone."""

StepTimes = Callable[[list[Genome]], list[float]]
"""Predicts the step times of plans, in s."""

_ROUNDS, _ELITE = 4, 16
_PAYS = 1.05
"""Speed-up over the line's plan from which a plan that is known to lose is named beside it."""


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """Best predicted plan within a limit of steps."""

    limit: float
    """Most times the steps of exact training; 1 for exact plans alone."""
    genes: Genome
    step_s: float
    """Predicted time of a step."""
    steps_ratio: float
    """How many times the steps of exact training the plan is taken to need."""
    ddp_s: float
    """Predicted time of a step with torch's own exchange in 32 bits: DDP's, or FSDP2's."""
    wrapper: str
    """Name of what torch trains the model with, 'DDP' or 'FSDP2'."""
    risk: Risk

    @property
    def speedup(self) -> float:
        """Ratio of the times to the loss of torch's own exchange: that of step times over that of steps."""
        return self.ddp_s / (self.step_s * self.steps_ratio)

    def as_row(self) -> dict[str, Any]:
        """Return what a JSON file has of it."""
        return {
            "limit": self.limit,
            "plan": self.genes.summary,
            "step_s": self.step_s,
            "steps_ratio": self.steps_ratio,
            "speedup": self.speedup,
            **{f"risk_{key}" if key == "sentence" else key: value for key, value in asdict(self.risk).items()},
        }


def remembering(step_s: StepTimes, known: dict[Genome, float]) -> StepTimes:
    """Return what predicts each plan once, and keeps its time in `known`."""

    def remembered(plans: list[Genome]) -> list[float]:
        new = [genes for genes in dict.fromkeys(plans) if genes not in known]
        known.update(zip(new, step_s(new), strict=True) if new else ())
        return [known[genes] for genes in plans]

    return remembered


def search_predicted(
    space: Space,
    step_s: StepTimes,
    seeds: Mapping[str, Genome],
    number: int,
    seed: int,
    *,
    least_s: Callable[[Genome], float] = lambda _: 0.0,
) -> list[tuple[Genome, float]]:
    """Return plans and their predicted times per step of exact training, best first: drawn, then bred from the best.

    Args:
        space: What may be chosen.
        step_s: Predicts step times, in s.
        seeds: Plans that are predicted before all others; those outside the space are left out.
        number: Plans that are drawn or bred.
        seed: Seed of them.
        least_s: Least step time of a plan; a plan that cannot be better than the best so far is not predicted.

    """
    rng = random.Random(seed)  # noqa: S311  not for secrets
    known: dict[Genome, float] = {}

    def ask(plans: list[Genome]) -> None:
        best_s = min(known.values(), default=math.inf)
        new = [genes for genes in dict.fromkeys(plans) if genes not in known]
        new = [genes for genes in new if least_s(genes) * space.quality.factor(genes) <= best_s]
        found_s = step_s(new) if new else []
        known.update({genes: s * space.quality.factor(genes) for genes, s in zip(new, found_s, strict=True)})

    ask([genes for genes in seeds.values() if genes in space])
    each = max(1, number // (1 + _ROUNDS))
    ask([space.sample(rng) for _ in range(each)])
    for _ in range(_ROUNDS):
        elite = sorted(known, key=known.__getitem__)[:_ELITE]
        ask([space.mutate(rng.choice(elite), rng) for _ in range(each)])
    return sorted(known.items(), key=lambda item: item[1])


def frontier(
    workload: Workload,
    topology: Topology,
    optimizer: str,
    step_s: StepTimes,
    *,
    quality: Quality | None = None,
    candidates: int = 40,
    seed: int = 0,
    least_s: Callable[[Genome], float] = lambda _: 0.0,
    combined: bool = False,
) -> list[FrontierPoint]:
    """Return the three points of the frontier: exact, up to 1.1 and up to 1.5 times the steps.

    Each is the best predicted plan that is not known to lose accuracy with this optimizer. Where a plan that is known
    to lose is predicted to be faster by more than a twentieth, it follows as a point of its own, with the same limit.
    All plans whose steps were measured with this optimizer are among those that are predicted.

    Args:
        workload: What a step computes and exchanges.
        topology: Hosts and links.
        optimizer: Name of its class, such as 'AdamW', or of all, as in 'AdamW and Muon'.
        step_s: Predicts step times.
        quality: Ratios that were measured on the user's own training, its steps, and what is rejected; its budget is
            not used.
        candidates: Plans to predict for each point.
        seed: Seed of the plans that are drawn.
        least_s: Least step time of a plan, in s; one that cannot be better than the best so far is not predicted.
        combined: Whether nodes around others and small parameters apart are drawn as well, as `Space` says.

    """
    quality = quality or Quality()
    scale = Scale.of(workload, topology, quality.scale.steps)
    base = replace(quality, optimizer=optimizer, unmeasured=True, scale=scale)
    genes = searched_genes(base.ratios, combined=combined, racks=bool(topology.racks))
    losing = frozenset(gene for gene in genes if is_losing(gene, optimizer, scale))
    measured = measured_genomes(optimizer, scale)
    known: dict[Genome, float] = {}
    remember = remembering(step_s, known)

    def explore(allowed: Quality) -> None:
        space = Space(workload, topology, allowed, combined=combined)
        search_predicted(space, remember, measured | space.baselines, candidates, seed, least_s=least_s)

    def best(allowed: Quality) -> Genome:
        inside = [genes for genes in known if all(allowed.admits(gene) for gene in genes.genes)]
        return min(inside, key=lambda genes: known[genes] * allowed.factor(genes))

    ddp_s = remember([next(iter(Space(workload, topology, base).baselines.values()))])[0]  # torch's own exchange
    pairs = [
        (replace(base, budget=limit, rejected=base.rejected | losing), replace(base, budget=limit))
        for limit in FRONTIER_LIMITS
    ]
    for safe, whole in pairs:
        explore(safe)
        if whole != safe:
            explore(whole)
    points: list[FrontierPoint] = []
    for safe, whole in pairs:
        found = [best(safe), best(whole)]
        gain = known[found[0]] * base.factor(found[0]) / (known[found[1]] * base.factor(found[1]))
        if not risk_of(found[1], optimizer, scale).loses or gain <= _PAYS:
            found.pop()
        points += [
            FrontierPoint(
                limit=safe.budget,
                genes=genes,
                step_s=known[genes],
                steps_ratio=base.factor(genes),
                ddp_s=ddp_s,
                wrapper=workload.wrapper,
                risk=risk_of(genes, optimizer, scale),
            )
            for genes in found
        ]
    return points


def frontier_text(points: Sequence[FrontierPoint], optimizer: str) -> str:
    """Return the lines of a frontier, as plan, auto and run print them: predicted, with the risk of each."""
    wrapper = points[0].wrapper
    lines = [f"Frontier, predicted, with {optimizer} ({wrapper} in 32 bits: a step of {format_time(points[0].ddp_s)}):"]
    for point in points:
        limit = "exact" if point.limit == 1 else f"up to {point.limit:g}x the steps"
        if point.risk.loses:
            limit = "  faster, but loses"
        lines.append(
            f"  {limit:<21} step {format_time(point.step_s)}, {point.steps_ratio:.2f}x the steps, "
            f"{point.speedup:.3g}x sooner than {wrapper}: {point.genes.summary}; risk: {point.risk.sentence}"
        )
    return "\n".join(lines)
