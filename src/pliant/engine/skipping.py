"""Skipped steps: a GradScaler skips one on a single rank, while others wait for the exchange after it."""

from collections.abc import Mapping

from torch import Tensor

from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.step_hooks import StepHooks

__all__ = ["CountsSkips"]


class CountsSkips:
    """Base of a run that counts steps which a GradScaler has skipped.

    Where weights are exchanged, gradients stay with their rank, and so does an overflow. The rank that skips its step
    takes part in the exchange after it with weights that have not moved, so that all ranks count the same steps. Owners
    at a free pace are sent a gradient of zero for each optimizer that was skipped: in the order in which all ranks ask
    owners, none may be left out, or two ranks wait for each other.
    """

    _dispatcher: BucketDispatcher
    _executor: PlanExecutor
    _parameters: Mapping[str, Tensor]
    _step_hooks: StepHooks

    def catch_up(self) -> None:
        """End the steps that the loss scale says were skipped; to be called before a pass, and wherever ranks meet."""
        scale = self._dispatcher.scale
        self._dispatcher.follow_scale()
        if self._dispatcher.overflowed is not False:  # before the first step only
            self._dispatcher.overflowed = bool(self._dispatcher.overflowed)
        if self._dispatcher.overflowed and self._is_finite:
            self._dispatcher.overflowed = False  # gone, and no step has used them
            if scale.is_sought:
                scale.skip()
        missed, members = scale.take_skips(in_part=self._step_hooks.is_in_part), self._step_hooks.members
        # Before the first step nobody knows of the scaler, nor that optimizers might step in turns.
        if skipped := [*members] * missed if scale.is_sought else scale.pop_skipped(members):
            for part in self._executor.parts:
                part.steps_skipped(skipped, self._dispatcher.step)
        for _ in range(missed if any(part.makes_up_for_skips for part in self._executor.parts) else 0):
            self._step_hooks.end_skipped()

    @property
    def _is_finite(self) -> bool:
        gradients = [p.grad for p in self._parameters.values()]
        return all(grad is None or bool(grad.isfinite().all()) for grad in gradients)
