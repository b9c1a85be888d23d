"""Parts of a run: each does something around the optimizer's steps, at moments that are the same for all."""

from typing import Any

from torch.optim import Optimizer

__all__ = ["Part"]


class Part:
    """Something that a run does beside its exchanges of gradients. A moment does nothing unless a part fills it.

    Note [who waits for whom]: moments are called in the training thread, on every rank in the same order, part by part.
    So a part may wait there for what it has queued, which waits for the other ranks; a task of a communication thread
    never waits for the training thread.
    """

    key = ""
    """Name of its state in a checkpoint; empty if it has none."""
    keeps_from_joining = ""
    """Why a rank that makes no steps cannot stand in for one that does; empty if it can."""
    lets_ranks_differ = False
    """Whether ranks have weights and buffers of their own, and must not wait for each other in DDP."""

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Prepare for an optimizer that is about to use its gradients; `step` steps are complete."""

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Follow an optimizer that has stepped, which may be one of several; `step` steps are complete."""

    def after_step(self, step: int) -> None:
        """Go on after the run's step: now `step` are complete. May be collective."""

    def settle(self, step: int) -> None:
        """Make what is in flight a state that can be saved; at a free pace this is collective."""

    def hand_back(self, step: int) -> None:
        """Finish what is in flight, and leave equal weights and whole optimizer states. Collective."""

    def abandon(self) -> None:
        """Let go of what is in flight, since this rank or another is lost; waits for nobody."""

    def close(self) -> None:
        """Remove every hook, and end every thread; the last call."""

    def report_work(self, work: float) -> None:
        """Add to the work that this rank has done."""

    def explain(self) -> str:
        """Say in a sentence what it keeps on this rank; empty if that is nothing."""
        return ""

    def stats(self) -> dict[str, float]:
        """Return its share of `RunStats`, by field. No communication."""
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
        """Follow a model and an optimizer whose states were loaded."""
