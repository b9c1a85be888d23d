"""Base of Pliant's optimizers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["OwnOptimizer"]


class OwnOptimizer(Optimizer, ABC):
    """Base of Pliant's optimizers, which step each group by itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step of all groups."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group([p for p in group["params"] if p.grad is not None], group)
        return loss

    @abstractmethod
    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step the parameters of a group that have a gradient."""
