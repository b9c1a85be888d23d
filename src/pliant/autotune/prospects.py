"""Prospects of a search, by prediction alone: the frontier, and what the best plan may gain."""

from dataclasses import dataclass

from pliant.netmodel import Overheads
from pliant.planner import (
    FrontierPoint,
    Genome,
    LeastTimes,
    Quality,
    Space,
    Trial,
    frontier,
    limits_text,
    measured_genomes,
    remembering,
    search_predicted,
)
from pliant.simulator.simulate import context_for, step_times
from pliant.spec import Topology, Workload

__all__ = ["Prospects", "look_ahead"]

_CANDIDATES = 20
"""Plans that are predicted for each point of the frontier, and for the gain."""


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Predictions before any plan is tried."""

    points: tuple[FrontierPoint, ...]
    """The frontier: exact, up to 1.1 and up to 1.5 times the steps."""
    text: str
    """The same in words, with the risk of each point, and a sentence on what is left out."""
    gain: float
    """How many times sooner than torch's own exchange the best plan that may be tried gets to the same accuracy.

    What exchanges are predicted to add to computing is made as small as it was seen to be."""


def look_ahead(
    workload: Workload,
    topology: Topology,
    overheads: Overheads,
    quality: Quality,
    exact: Genome,
    seen: Trial,
    seed: int,
) -> Prospects:
    """Predict the frontier, and what a search may gain.

    Args:
        workload: What a step computes and exchanges.
        topology: As it was measured.
        overheads: Of this machine.
        quality: What may be tried, and with which optimizer.
        exact: Torch's own exchange.
        seen: The plan in force, with its step time.
        seed: Seed of the plans that are drawn.

    """
    least_s = LeastTimes(workload, topology, overheads)
    context = context_for(workload, topology, overheads, workload.rank_factors)

    def simulated(plans: list[Genome]) -> list[float]:
        return step_times([genes.plan() for genes in plans], context).tolist()

    step_s = remembering(simulated, {})
    compute_s = workload.compute_s * max(workload.rank_factors, default=1.0)
    added_s, seen_s = step_s([seen.genes])[0] - compute_s, max(seen.step_s - compute_s, 0.0)
    scale = seen_s / added_s if added_s > seen_s else 1.0

    def scaled(s: float) -> float:
        return s + (1 - scale) * min(compute_s - s, 0.0)

    def to_accuracy_s(plans: list[Genome]) -> list[float]:
        return [scaled(s) * quality.factor(genes) for s, genes in zip(step_s(plans), plans, strict=True)]

    optimizer = quality.optimizer
    points = frontier(
        workload, topology, optimizer, step_s, quality=quality, candidates=_CANDIDATES, seed=seed, least_s=least_s
    )
    text = limits_text(workload, topology, quality, points, step_s)
    space = Space(workload, topology, quality)
    seeds = {**measured_genomes(optimizer, quality.scale), **space.baselines, "exact": exact}
    found = search_predicted(
        space, to_accuracy_s, seeds, _CANDIDATES, seed, least_s=lambda genes: scaled(least_s(genes))
    )
    gain = to_accuracy_s([exact])[0] / found[0][1]
    return Prospects(points=tuple(points), text=text, gain=gain)
