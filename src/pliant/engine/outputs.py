"""Gradients that reach a model's output, kept for a few rows: enough to tell which loss it is trained on."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pliant.curvature import LossName, recognize_loss
from pliant.engine.hooks import do_nothing, watch_forward

__all__ = ["OutputWatch", "output_in"]

_ROWS, _NUMEL = 64, 1 << 18
"""So many rows of an output are kept at most, and of many classes fewer, down to four."""


class OutputWatch:
    """Keeps rows of a model's output with the gradient that reaches them, in passes that are wanted.

    A softmax, where there is one, is looked for in `.logits`, ``["logits"]``, a tensor, or the first of a tuple.

    Args:
        ddp: The DDP around it, if there is one.
        module: The model without wrappers.
        wanted: Whether the next forward pass is to be looked at.

    """

    def __init__(self, ddp: nn.Module | None, module: nn.Module, wanted: Callable[[], bool]) -> None:
        self._module, self._wanted = module, wanted
        self._why = ""
        self._rows: tuple[Tensor, Tensor] | None = None
        self.close = watch_forward(ddp, module, do_nothing, self._keep)
        """Stop looking."""

    def forget(self) -> None:
        """Drop what was kept."""
        self._rows, self._why = None, ""

    def loss(self) -> tuple[LossName | None, str]:
        """Return the loss that the last pass was of, or None and why it is not known; both empty: ask again later."""
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
        index = torch.linspace(0, num - 1, few, device=found.device).long() if few else torch.zeros(0).long()
        rows = found.detach().reshape(-1, width)[index].clone()
        self._why = "no gradient has reached the model's output"

        def reached(gradient: Tensor) -> None:
            self._rows = rows, gradient.detach().reshape(-1, width)[index].clone()

        found.register_hook(reached)


def output_in(output: Any) -> Tensor | None:
    """Return what a loss is likely to be taken of in a model's output: floating-point numbers, (samples, ...), or None.

    A tensor, `.logits`, ``["logits"]``, or the first of a tuple or list.
    """
    found = output
    if isinstance(output, Mapping):
        found = cast(Mapping[str, Any], output).get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = cast(tuple[Any, ...], output)[0]
    return found if isinstance(found, Tensor) and found.is_floating_point() and found.dim() >= 1 else None
