"""Protocol of a run that a tuner may put plans in force on."""

from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from pliant.engine.curvature_requests import Curvature
from pliant.engine.stats import RunStats
from pliant.engine.trial import PlanOnTrial
from pliant.spec import SyncPlan

__all__ = ["TunableRun"]


class TunableRun(Protocol):
    """The part of a run that the tuner uses."""

    plan: SyncPlan
    model: nn.Module
    optimizer: Optimizer
    trial: PlanOnTrial

    @property
    def num_shards(self) -> int:
        """Ranks among which parameters are divided; 0 for a whole model."""
        ...

    @property
    def curvature(self) -> Curvature:
        """Curvature of the loss, as far as it is known."""
        ...

    @property
    def steps(self) -> int:
        """Optimizer steps made so far."""
        ...

    def stats(self) -> RunStats:
        """Return what the run has cost. No communication."""
        ...

    def switch(self, what: SyncPlan, *, pay: bool = True) -> None:
        """Put another plan in force, and pass on the old one's residuals, or drop them. Collective."""
        ...

    def put_on_trial(self, plan: SyncPlan) -> None:
        """Put a plan in force on trial. Collective."""
        ...

    def undo(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one whose trial has failed, and all else back. Collective."""
        ...

    def adopt(self, plan: SyncPlan) -> None:
        """Put a plan in force for good, and guard it. Collective."""
        ...

    def fall_back(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one that was adopted and has failed. Collective."""
        ...
