"""Step of an outer optimizer: what its momentum makes of a change, in every round or in every N-th."""

from collections.abc import Mapping

from torch import Tensor

from pliant.algorithms.base import StateSpec
from pliant.spec import Outer

__all__ = ["outer_slots", "step_momentum"]


def outer_slots(outer: Outer) -> StateSpec:
    """Return the slots of an outer optimizer: its momentum, and what that has not taken yet."""
    slots: StateSpec = {"momentum": None} if outer.has_momentum else {}
    return {**slots, "gathered": None} if outer.every > 1 else slots


def step_momentum(outer: Outer, change: Tensor, kept: Mapping[str, Tensor], *, step: int, is_due: bool) -> None:
    """Let the momentum take a change, float32 (numel,), and add what it makes of it where its step is due.

    Args:
        outer: The optimizer.
        change: The change, which becomes what the rate is applied to.
        kept: Its slots, float32 (numel,).
        step: Steps of the training, for a momentum that changes along it.
        is_due: Whether the momentum makes a step, and does not only gather.

    """
    if not outer.has_momentum:
        return
    momentum, gathered = kept["momentum"], kept.get("gathered")
    if not is_due:
        (momentum if gathered is None else gathered).add_(change)
        return
    mu = outer.momentum_at(step)
    momentum.mul_(mu).add_(change)
    if not outer.nesterov:
        change.copy_(momentum)  # what was gathered has been used
    if gathered is not None:
        momentum.add_(gathered)
        gathered.zero_()
    if outer.nesterov:
        change.add_(momentum, alpha=mu)
