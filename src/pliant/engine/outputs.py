"""Gradients that reach a model's output, kept for a few rows, by which the loss is recognized."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pliant.curvature import LossName, output_in, recognize_loss
from pliant.engine.hooks import do_nothing, watch_forward

__all__ = ["OutputWatch"]

_ROWS, _NUMEL = 64, 1 << 18
"""Most rows of an output that are kept, and most elements: of many classes fewer rows, down to four."""


class OutputWatch:
    """Keeps rows of a model's output with the gradient that reaches them, in selected passes.

    The output of a softmax is looked for in `.logits`, ``["logits"]``, a tensor, or the first of a tuple.

    Args:
        ddp: The DDP around it, if there is one.
        module: The model without wrappers.
        wanted: Returns whether rows of the next forward pass are kept.

    """

    def __init__(self, ddp: nn.Module | None, module: nn.Module, wanted: Callable[[], bool]) -> None:
        self._module, self._wanted = module, wanted
        self._why = ""
        self._rows: tuple[Tensor, Tensor] | None = None
        self.close = watch_forward(ddp, module, do_nothing, self._keep)
        """Remove the hooks."""

    def forget(self) -> None:
        """Drop the kept rows."""
        self._rows, self._why = None, ""

    def loss(self) -> tuple[LossName | None, str]:
        """Return the loss of the last pass, or None and why it is not known; both empty if a later pass may tell."""
        if self._rows is None:
            return None, self._why
        name = recognize_loss(*self._rows)
        if name == "other":
            return None, "the gradient at the model's output is neither a softmax's cross-entropy's nor a sigmoid's"
        return name, ""

    def _keep(self, output: Any) -> None:
        if not (self._module.training and torch.is_grad_enabled() and self._wanted()):
            return
        self.forget()
        found = output_in(output)
        if found is None:
            self._why = f"the model returns a {type(output).__name__} in which no output of samples was found"
            return
        if not found.requires_grad:
            return
        width = found.shape[-1] if found.dim() > 1 else 1
        num = found.numel() // max(1, width)
        few = min(num, max(4, min(_ROWS, _NUMEL // max(1, width))))
        index = torch.arange(few, device=found.device) * (num - 1) // max(1, few - 1)
        rows = found.detach().reshape(-1, width)[index].clone()
        self._why = "no gradient has reached the model's output"

        def reached(gradient: Tensor) -> None:
            self._rows = rows, gradient.detach().reshape(-1, width)[index].clone()

        found.register_hook(reached)
