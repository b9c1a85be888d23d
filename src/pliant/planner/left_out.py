"""Plan that no line of a frontier names, since its steps were not measured or are too many: what it would save."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pliant.planner.families import NAMED_FAMILIES
from pliant.planner.frontier import FRONTIER_LIMITS, FrontierPoint, StepTimes, frontier_text
from pliant.planner.genome import Genome, all_of
from pliant.planner.quality import Quality
from pliant.planner.risk import Risk, is_losing, risk_of
from pliant.planner.space import Space
from pliant.planner.steps_ratios import fitted_ratios
from pliant.spec import Topology, Workload
from pliant.spec.units import format_time

__all__ = ["LeftOut", "left_out", "limits_text"]

_PAYS = 1.05
"""Speed-up over the best line of the frontier from which such a plan is named."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Plan that exchanges weights, beyond every limit of a frontier, though its steps would be the fastest."""

    genes: Genome
    step_s: float
    """Predicted time of a step."""
    speedup: float
    """Time to the loss of the best plan of the frontier over that of this one, if it needed no more steps."""
    risk: Risk

    @property
    def sentence(self) -> str:
        """Sentence on what it would save, and on what keeps it out."""
        return (
            f"Left out: {self.genes.summary}; a step of {format_time(self.step_s)} would be {self.speedup:.3g}x sooner "
            f"than the best line if no more steps were needed; risk: {self.risk.sentence}."
        )


def left_out(
    workload: Workload, topology: Topology, quality: Quality, points: Sequence[FrontierPoint], step_s: StepTimes
) -> LeftOut | None:
    """Return the fastest plan that exchanges weights and is within no limit of a frontier; None if none would pay.

    Plans that were measured with the optimizer come first, and then the strongest setting of each way of exchanging; of
    both kinds, those that are not known to lose. At a free pace the network decides how often ranks exchange, so that a
    fast step promises nothing, and such plans are not named.

    Args:
        workload: What a step computes and exchanges.
        topology: Hosts and links.
        quality: Optimizer, size of the training, ratios of the user's own, and what is rejected.
        points: The frontier.
        step_s: Predicts step times.

    """
    most = replace(quality, budget=FRONTIER_LIMITS[-1], unmeasured=True)
    fitted = fitted_ratios(quality.optimizer, quality.scale)
    asked = dict.fromkeys((*fitted, *(all_of(name)[-1] for name in NAMED_FAMILIES)))
    local = [gene for gene in asked if gene.between_steps and gene.exchange.timing.pace == "lockstep"]
    beyond = [gene for gene in local if not most.admits(gene)]
    space = Space(workload, topology, replace(most, ratios=dict.fromkeys(beyond, 1.0)))  # if no more steps were needed
    plans = [genes for genes in map(Genome, beyond) if genes in space]
    least_s = min(point.step_s * point.steps_ratio for point in points if not point.risk.loses)
    times_s = step_s(plans) if plans else []
    faster = [(s, genes) for s, genes in zip(times_s, plans, strict=True) if _PAYS * s < least_s]
    if not faster:
        return None
    known = (quality.optimizer, quality.scale)
    taken_s, best = min(faster, key=lambda each: (each[1].base not in fitted, is_losing(each[1].base, *known), each[0]))
    return LeftOut(genes=best, step_s=taken_s, speedup=least_s / taken_s, risk=risk_of(best, *known))


def limits_text(
    workload: Workload, topology: Topology, quality: Quality, points: Sequence[FrontierPoint], step_s: StepTimes
) -> str:
    """Return the lines of a frontier, and a sentence on what they leave out; arguments as of `left_out`."""
    left, lines = left_out(workload, topology, quality, points, step_s), frontier_text(points, quality.optimizer)
    return lines if left is None else f"{lines}\n{left.sentence}"
