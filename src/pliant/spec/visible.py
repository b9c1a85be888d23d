"""Node that sends what the next pass in 16 bits would see of a change."""

from dataclasses import dataclass
from typing import ClassVar

from pliant.spec.exchange import Exchange, Feedback
from pliant.spec.ranges import Ratio

__all__ = ["VisibleChanges"]


@dataclass(frozen=True, kw_only=True)
class VisibleChanges(Exchange):
    """Changes of weights that are visible in bfloat16, with error feedback for the others (PULSELoCo)."""

    made_by: ClassVar[str] = "executors.visible_changes:VisibleChangesExecutor"
    assumed_density: Ratio
    """Share of the elements that predictions take to be sent; how many are, training decides. So nothing is tried."""

    @property
    def needs_anchor(self) -> bool:
        return True

    @property
    def error_feedback(self) -> Feedback:
        return "worker"
