"""Trials of plans as transactions: errors are kept, and the steps of a failed trial are undone."""

import copy
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.comm.base import CommError
from pliant.comm.fsdp_private import param_groups
from pliant.engine.agreement import ReplicasDisagreeError
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.shard_optimizer import as_local
from pliant.engine.unused_parameters import IncompleteBackwardError

__all__ = ["PlanOnTrial", "Snapshot"]


class Snapshot:
    """A copy of weights, buffers and optimizers' states, beside the model's own.

    The optimizers' settings, such as learning rates, and random generators are not copied: they belong to the caller,
    whose schedules and batches go on.
    """

    @torch.no_grad()
    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        # Of a sharded model what is kept, also within a pass, when memory of that pass stands in its place.
        kept = {key: p for group in param_groups(module) for key, p in group.stand_ins.items()}
        lasting: list[Tensor] = [kept.get(id(p), p) for p in module.parameters()]
        self._parameters = [(p, p.detach().clone()) for p in lasting]
        self._buffers = [
            (owner, name, buffer.detach().clone())
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]
        self._states: list[tuple[Optimizer, dict[Tensor, Any]]] = [
            (each, {p: copy.deepcopy(own) for p, own in each.state.items()}) for each in optimizers
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; the copy stays, so that it can be used again."""
        for parameter, before in self._parameters:
            parameter.copy_(before)
        for owner, name, before in self._buffers:
            now = getattr(owner, name)
            if isinstance(now, Tensor) and now.shape == before.shape:
                now.copy_(before)
            else:
                setattr(owner, name, before.clone())
        for optimizer, state in self._states:
            optimizer.state.clear()
            for parameter, own in state.items():
                optimizer.state[parameter] = copy.deepcopy(own)

    @property
    def spoiled(self) -> bool:
        """Whether a weight is NaN or Inf now that was finite then."""
        pairs = ((as_local(p), as_local(before)) for p, before in self._parameters)
        return any(not bool(p.isfinite().all()) and bool(before.isfinite().all()) for p, before in pairs)


class PlanOnTrial:
    """Keeps the errors of a plan on trial, so that the training goes on, and undoes its steps.

    A run has one of these. Between `begin` and `end` an error of Pliant's own work, in a hook, a step or a switch, is
    kept and not raised, and this rank's weights are restored to those of the beginning after each step from then on.
    All other errors pass: those of the caller's code, and CommError, since a lost rank stays lost.

    An adopted plan is guarded likewise, but without a copy, which is made when an error comes. A rank's weights then
    stay as they were at that moment until all ranks have met and are equal again. An error that any plan would raise is
    raised: gradients that were not finite before their exchange, and a model or ranks that do not fit.

    An error is kept on the rank that has it. Ranks tell each other when they next meet (`TrialRunner`, `StepMonitor`),
    and all undo the same: copies are equal on all ranks if weights were when the trial began.
    """

    def __init__(self) -> None:
        self.why = ""
        """First error, as 'ValueError: its message'; empty as long as there is none."""
        self.is_agreed = False
        """Whether all ranks know that the trial has failed."""
        self.is_on = False
        """Whether a trial has begun and not ended."""
        self.guards = False
        """Whether the plan in force was adopted, and is left if it raises."""
        self.undone = 0
        """Steps since the first error, which this rank's weights do not contain."""
        self._snapshot: Snapshot | None = None
        self._owed: dict[str, Tensor] = {}
        self._of: tuple[nn.Module, Sequence[Optimizer], int] | None = None

    def begin(self, module: nn.Module, optimizers: Sequence[Optimizer], owed: dict[str, Tensor]) -> None:
        """Copy everything that a failure would undo.

        Args:
            module: The model without its DDP.
            optimizers: Those of its parameters.
            owed: Gradients that the plan before has left, and that were not exchanged yet.

        """
        self.end()
        self._snapshot, self._owed = Snapshot(module, optimizers), dict(owed)
        self.is_on = True

    def guard(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Keep errors of the adopted plan from now on.

        Args:
            module: The model without its DDP.
            optimizers: Those of its parameters.

        """
        self.end()
        self._of, self.guards = (module, optimizers, os.getpid()), True

    def end(self) -> None:
        """Free the copy; errors are raised again."""
        self._snapshot, self._owed, self._of = None, {}, None
        self.why, self.is_agreed, self.undone = "", False, 0
        self.is_on = self.guards = False

    @contextmanager
    def catch_errors(self) -> Generator[None]:
        """Keep an error of the block during a trial, or under a guarded plan, and raise it otherwise."""
        try:
            yield
        except CommError:
            raise
        except Exception as error:
            if not (self.is_on or (self._of is not None and self._of[2] == os.getpid() and _is_of_plan(error))):
                raise
            self.fail(f"{type(error).__name__}: {error}")  # as text: an error holds its frames, and they connections

    def has_caught(self, context: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
        """Return a function that keeps its errors as `catch_errors` does."""

        def run(optimizer: Optimizer) -> None:
            with self.catch_errors():
                context(optimizer)

        return run

    def fail(self, why: str) -> None:
        """Note that the trial has failed, here or on another rank; the first reason counts."""
        self.why = self.why or why
        if self._of is not None and self._snapshot is None:
            self._snapshot = Snapshot(*self._of[:2])

    def agree(self, why: str) -> None:
        """Keep, on all ranks, why the trial has failed on one of them."""
        self.why, self.is_agreed = why, True

    def check(self) -> None:
        """Fail the trial if weights have become NaN or Inf."""
        if not self.why and self._snapshot is not None and self._snapshot.spoiled:
            self.fail("weights have become NaN or Inf")

    def restore(self) -> None:
        """Put this rank's weights, buffers and optimizers' states back, if the trial has failed."""
        if self.why and self._snapshot is not None:
            self._snapshot.restore()
            self.undone += 1

    @property
    def owed(self) -> dict[str, Tensor]:
        """Gradients that an earlier plan had left when the trial began, by parameter."""
        return dict(self._owed)


def _is_of_plan(error: Exception) -> bool:
    """Say whether another plan would not have raised it."""
    if isinstance(error, NonFiniteGradientError):
        return error.of_plan
    return not isinstance(error, (IncompleteBackwardError, ReplicasDisagreeError))
