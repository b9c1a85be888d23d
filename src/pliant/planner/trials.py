"""Trials: a plan, and how long its steps took, or why they did not."""

import statistics
from dataclasses import dataclass
from typing import Literal, Protocol

from pliant.planner.genome import Genome

__all__ = ["Measure", "Status", "Trial"]

Status = Literal["ok", "aborted", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One plan that was really run."""

    genes: Genome
    steps_s: tuple[float, ...] = ()
    """Step times, as they came; of an aborted trial those before its end."""
    status: Status = "ok"
    reason: str = ""
    """Why it failed, in a sentence: out of memory, a timeout, a NaN. A failure has no time, not the time 0."""

    @property
    def step_s(self) -> float:
        """Median step time; of a trial that was aborted because it was slow, at least what it took so far."""
        return statistics.median(self.steps_s)

    @property
    def noise_s(self) -> float:
        """Median distance of steps from their median, over the root of their number."""
        middle = self.step_s
        return statistics.median(abs(s - middle) for s in self.steps_s) / len(self.steps_s) ** 0.5


class Measure(Protocol):
    """Runs a plan and times its steps; whatever goes wrong becomes a failed trial, not an error."""

    def __call__(self, genes: Genome, *, give_up_above_s: float) -> Trial:
        """Time some steps, and abort after a few if they are surely slower than that."""
        ...
