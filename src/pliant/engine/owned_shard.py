"""Weights that a rank owns, apart from those that it computes with, stepped by a copy of the user's optimizer."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.engine.optimizer_copy import OptimizerCopy
from pliant.engine.owned_ranges import OwnedRanges, pack

__all__ = ["OwnedShard"]


class OwnedShard:
    """Steps the weights that this rank owns with gradients that have come for them, for good or on trial.

    Args:
        owned: What this rank owns of each parameter, in an order that all ranks know.
        optimizer: The user's, of which a copy steps.
        gradient: Gradients of what is owned, one parameter after another, float32 (numel,), on any device; filled by
            the caller before a step.

    """

    def __init__(self, owned: Sequence[OwnedRanges], optimizer: Optimizer, gradient: Tensor) -> None:
        self._owned, self._gradient = list(owned), gradient
        self.weights = {own.name: own.empty() for own in owned}
        """Parameter -> weights of what is owned of it."""
        reals = [as_real(weight) for weight in self.weights.values()]
        numels = [real.numel() for real in reals]
        self._gradients = [g.view(x.shape) for g, x in zip(gradient.split(numels), reals, strict=True)]
        self._before: list[Tensor] = []
        self._copy = OptimizerCopy(optimizer, owned, list(self.weights.values()))
        self.begin()

    @torch.no_grad()
    def begin(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Go on from the optimizer's state and these weights, by parameter; the model's where there are none."""
        for own in self._owned:
            real = as_real(self.weights[own.name])
            pack(real.view(-1), own.views(weights.get(own.name, own.parameter)))
        self.follow_schedule()

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer, and take over a state loaded into it."""
        self._copy.follow_schedule()
        self._copy.take_states()

    @torch.no_grad()
    def step(self, factor: float, unused: Collection[str] = ()) -> None:
        """Step with the gradients times a factor, but for parameters of `unused` for which none has come."""
        self._place_gradients(factor, unused)
        self._copy.step()

    @torch.no_grad()
    def step_on_trial(self, factor: float, unused: Collection[str] = ()) -> None:
        """Step likewise, but leave the optimizer's state as it is; `undo` brings the weights back."""
        if not self._before:
            self._before = [torch.empty_like(weight) for weight in self.weights.values()]
        for before, weight in zip(self._before, self.weights.values(), strict=True):
            before.copy_(weight)
        self._place_gradients(factor, unused)
        self._copy.step_on_trial()

    @torch.no_grad()
    def undo(self) -> None:
        """Bring back the weights before the last step on trial."""
        for before, weight in zip(self._before, self.weights.values(), strict=True):
            weight.copy_(before)

    def _place_gradients(self, factor: float, unused: Collection[str]) -> None:
        self._gradient.mul_(factor)
        for (name, weight), gradient in zip(self.weights.items(), self._gradients, strict=True):
            if name in unused and not bool(gradient.any()):
                weight.grad = None  # as a plain optimizer finds it, which then leaves weight and state alone
                continue
            own = gradient.to(weight.device, weight.dtype.to_real())
            weight.grad = torch.complex(*own.unbind(-1)) if weight.is_complex() else own  # may begin anywhere
