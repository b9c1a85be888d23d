"""Prospects of a search, by prediction alone: what the best plan may gain, and the frontier."""

from dataclasses import dataclass
from functools import cached_property

from pliant.autotune.recall import Conditions
from pliant.planner import FrontierPoint, Genome, LeastTimes, Quality, frontier, limits_text, remembering
from pliant.planner.frontier import StepTimes
from pliant.simulator.simulate import context_for, step_times

__all__ = ["Prospects"]

_CANDIDATES = 20
"""Plans that are predicted for each point of the frontier."""


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Predictions before any plan is tried."""

    gain: float
    """How many times sooner than torch's own exchange the best plan that may be tried gets to the same accuracy, or the
    plan in force if that is sooner."""
    conditions: Conditions
    """What a step computes and exchanges, and the network."""
    quality: Quality
    """What may be tried, and with which optimizer."""
    seed: int
    """Seed of the plans that are drawn for the frontier."""

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """Points of the frontier: exact, up to 1.1 and up to 1.5 times the steps. Predicted when asked for."""
        given = self.conditions
        least_s = LeastTimes(given.workload, given.topology, given.overheads)
        return tuple(
            frontier(
                given.workload,
                given.topology,
                self.quality.optimizer,
                self._step_s,
                quality=self.quality,
                candidates=_CANDIDATES,
                seed=self.seed,
                least_s=least_s,
            )
        )

    @cached_property
    def text(self) -> str:
        """Text of the frontier, with the risk of each point, and a sentence on what is left out."""
        given = self.conditions
        return limits_text(given.workload, given.topology, self.quality, self.points, self._step_s)

    @cached_property
    def _step_s(self) -> StepTimes:
        given = self.conditions
        context = context_for(given.workload, given.topology, given.overheads, given.workload.rank_factors)

        def simulated(plans: list[Genome]) -> list[float]:
            return step_times([genes.plan() for genes in plans], context).tolist()

        return remembering(simulated, {})
