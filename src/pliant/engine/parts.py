"""Parts of a run: objects that act at the same moments around the optimizer's steps."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

__all__ = ["Part"]


class Part:
    """Base of a run's parts. Each moment does nothing unless a part overrides it.

    Note [who waits for whom]: moments are called in the training thread, on every rank in the same order, part by part.
    There a part may wait for tasks that it has queued, and those wait for the other ranks. A task of a communication
    thread never waits for the training thread.
    """

    key = ""
    """Key of its state in a checkpoint; empty if it has none."""
    keeps_from_joining = ""
    """Reason why a rank that makes no steps cannot stand in for one that does; empty if it can."""
    checks_structure = False
    """Whether `check_state` compares keys and shapes too, since some depend on what was done last."""
    makes_up_for_skips = False
    """Whether a rank whose step a GradScaler has skipped takes part in what follows it all the same."""
    lets_ranks_differ = False
    """Whether ranks have weights and buffers of their own, and must not wait for each other in DDP."""

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Prepare for an optimizer that is about to use its gradients; `step` steps are complete."""

    def steps_skipped(self, optimizers: Sequence[Optimizer], step: int) -> None:
        """React to steps of optimizers that a GradScaler has skipped, maybe on this rank alone. Not collective."""

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """React to the step of an optimizer, which may be one of several; `step` steps are complete."""

    def after_step(self, step: int) -> None:
        """Act after the run's step: now `step` are complete. May be collective."""

    def settle(self, step: int) -> None:
        """Bring exchanges in flight to a state that can be saved; at a free pace this is collective."""

    def hand_back(self, step: int) -> None:
        """Finish exchanges in flight, and leave equal weights and whole optimizer states. Collective."""

    def abandon(self) -> None:
        """Drop exchanges in flight, since this rank or another is lost; waits for nobody."""

    def close(self) -> None:
        """Remove every hook, and end every thread; the last call."""

    def drop_owed(self) -> None:
        """Forget gradients that an earlier plan has left for the next exchange."""

    def report_work(self, work: float) -> None:
        """Add to the work that this rank has done since the start."""

    def explain(self) -> str:
        """Say in a sentence what it keeps on this rank; empty if that is nothing."""
        return ""

    def stats(self) -> dict[str, float]:
        """Return its part of `RunStats`, by field. No communication."""
        return {}

    @property
    def state(self) -> Any:
        """State from which a resumed run goes on: tensors whose shapes depend on model, optimizer and plan only."""
        return {}

    @state.setter
    def state(self, saved: Any) -> None: ...

    def check_state(self, saved: Any, step: int) -> None:
        """Raise ValueError for a state that cannot have been saved after so many steps."""

    def after_load(self) -> None:
        """React to the loading of the model's and the optimizer's states."""
