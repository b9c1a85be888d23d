"""A copy of the user's optimizer, which steps other tensors in place of its parameters."""

import copy
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.engine.optimizer_state import clone_optimizer
from pliant.engine.owned_ranges import OwnedRanges

__all__ = ["OptimizerCopy", "unscale"]

_OF_SCALER = ("grad_scale", "found_inf")
"""What a GradScaler leaves on a fused optimizer before it steps, and takes away behind its step."""


class OptimizerCopy:
    """Steps vectors of what a rank owns with the settings and the state of the user's optimizer.

    A parameter's state is one object in both, so that it is saved and loaded with the user's optimizer, where it holds
    what is owned alone. That is held weakly: its hooks hold the run.

    Args:
        optimizer: The user's.
        owned: What this rank owns of each parameter.
        vectors: What is stepped in place of each.

    """

    def __init__(self, optimizer: Optimizer, owned: Sequence[OwnedRanges], vectors: Sequence[Tensor]) -> None:
        self._user, self._owned, self._vectors = weakref.ref(optimizer), list(owned), list(vectors)
        self._stepper = clone_optimizer(optimizer)
        self._stepper.state = type(optimizer.state)(dict)
        self._tried = type(optimizer.state)(dict)
        """Vector -> copy of its state, on which a trial is made."""
        of_parameter = {id(own.parameter): vector for own, vector in zip(owned, vectors, strict=True)}
        self._groups = [  # (group of the user's optimizer, our vectors in it)
            (k, held)
            for k, group in enumerate(optimizer.param_groups)
            if (held := [of_parameter[id(p)] for p in group["params"] if id(p) in of_parameter])
        ]
        self.follow_schedule()

    @property
    def _optimizer(self) -> Optimizer:
        if (optimizer := self._user()) is None:
            raise RuntimeError("the optimizer of this run is gone; keep it as long as you train.")
        return optimizer

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer."""
        groups = self._optimizer.param_groups
        self._stepper.param_groups = [{**groups[k], "params": held} for k, held in self._groups]

    def follow_scaler(self) -> None:
        """Step gradients as the user's optimizer does, which is in its step: a fused one may have to unscale them."""
        for name in _OF_SCALER:
            setattr(self._stepper, name, getattr(self._optimizer, name, None))

    def take_states(self) -> None:
        """Go on from the states of the user's optimizer, whole ones or what is owned of them."""
        states = self._optimizer.state
        for own, vector in zip(self._owned, self._vectors, strict=True):
            if own.parameter not in states:
                self._stepper.state.pop(vector, None)
            elif states[own.parameter] is not self._stepper.state.get(vector):
                states[own.parameter] = self._stepper.state[vector] = own.cut(states[own.parameter])

    def step_on_trial(self) -> None:
        """Step the vectors that have gradients, with copies of their states, which stay as they are."""
        states = self._stepper.state
        for vector, state in states.items():
            self._tried[vector] = _copied(state, self._tried.get(vector, {}))
        for vector in self._tried.keys() - states.keys():
            del self._tried[vector]  # which the first step makes
        self._stepper.state = self._tried
        try:
            if self._groups:
                self._stepper.step()
        finally:
            self._stepper.state = states

    def step(self) -> None:
        """Step the vectors that have gradients."""
        if not self._groups:
            return
        optimizer = self._optimizer
        self._stepper.step()
        for own, vector in zip(self._owned, self._vectors, strict=True):
            if vector in self._stepper.state:  # an entry of its own, once there is something in it
                optimizer.state[own.parameter] = self._stepper.state[vector]


@torch.no_grad()
def unscale(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Take the loss scale from gradients that owners step with later, where a GradScaler leaves that to a fused step.

    Drop them all where one has overflowed, as such a step would.

    Returns:
        Whether they are to be used.

    """
    scale, overflows = (getattr(optimizer, name, None) for name in _OF_SCALER)
    is_left_out = overflows is not None and bool(overflows)
    for parameter in parameters:
        if is_left_out:
            parameter.grad = None
        elif parameter.grad is not None and scale is not None:
            parameter.grad.div_(scale)
    return not is_left_out


def _copied(state: Mapping[str, Any], into: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter's state, in the tensors of an earlier copy where it has them."""
    copied: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            held = into.get(key)
            copied[key] = held.copy_(value) if isinstance(held, Tensor) else value.detach().clone()
        else:
            copied[key] = copy.deepcopy(value)
    return copied
