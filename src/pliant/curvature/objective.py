"""Objective of an estimate: one forward pass of a model in training, and the loss of its output."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from pliant.accelerator import is_accelerator
from pliant.curvature.losses import LossName

__all__ = ["LossObjective", "Objective", "find_logits", "output_in", "preserved_state"]

Objective = Callable[[Any], Tensor]
"""From a model's output to losses, () or (samples,)."""


def output_in(output: Any) -> Tensor | None:
    """Return the likely argument of the loss in a model's output: floating-point numbers, (samples, ...), or None.

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


def find_logits(output: Any) -> Tensor:
    """Return the logits in a model's output, where `output_in` finds them.

    Raises:
        ValueError: There is no floating-point tensor of at least two dimensions.

    """
    found = output_in(output)
    if found is not None and found.dim() >= 2:
        return found
    raise ValueError(
        f"the model returns a {type(output).__name__}, in which no logits (..., classes) were found; say where they "
        "are with logits=lambda output: ..., or give a loss to an estimator that needs none: Hutchinson or Fisher."
    )


@dataclass(frozen=True, kw_only=True)
class LossObjective:
    """A repeatable forward pass of a model with the loss that is trained on. The model is unchanged.

    The model is the raw one, not its DistributedDataParallel, in training mode. Autocast is that of the caller.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    """Inputs of the forward pass, on the model's device."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logits: Callable[[Any], Tensor] = find_logits
    """From the output to logits, (..., classes): each row is a sample, or token, of the mean loss. Of other losses than
    a softmax's to what they are taken of, of any shape: each element is a sample then."""
    loss: Objective | None = None
    """From the output to the mean loss, (), or to the losses of samples, (samples,). Without it the loss is `loss_name`
    of labels drawn from the model itself: its Hessian, in the mean over draws, is the Gauss-Newton matrix."""
    loss_name: LossName = "cross_entropy"
    """Where labels are drawn: the softmax's, the sigmoid's, or the squared error, whose targets are drawn with variance
    1/2 about the output, so that the mean over draws of its squared gradient is its second derivative, 2."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Name -> parameter, of those that are trained; one that is shared appears once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def forward(self) -> Any:
        """Return the model's output with its graph."""
        kind = self.device.type
        # No cache: it would keep casts of weights from before, or for after, and weights move between two calls.
        with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=False):
            return self.model(*self.args, **self.kwargs)

    def sample_labels(self, output: Any, generator: torch.Generator) -> Tensor:
        """Return the losses, float32 (samples,), of labels drawn from the model."""
        return self.losses_of(output, self.draw(output, generator))

    def draw(self, output: Any, generator: torch.Generator) -> Tensor:
        """Return labels, (samples,): int64 for a softmax, else float32; any where the output is not finite."""
        z = self._samples(output).detach()
        z = torch.where(z.isfinite(), z, 0.0)  # the loss then says so
        if self.loss_name == "cross_entropy":
            return torch.multinomial(z.softmax(-1), 1, generator=generator).squeeze(-1)
        chances = torch.full_like(z, 0.5) if self.loss_name == "squared_error" else z.sigmoid()
        drawn = torch.bernoulli(chances, generator=generator)
        return z + (2 * drawn - 1) * math.sqrt(0.5) if self.loss_name == "squared_error" else drawn

    def losses_of(self, output: Any, labels: Tensor) -> Tensor:
        """Return the losses, float32 (samples,), of labels, (samples,)."""
        z = self._samples(output)
        if self.loss_name == "cross_entropy":
            return cross_entropy(z, labels, reduction="none")
        if self.loss_name == "squared_error":
            return (z - labels).square()
        return binary_cross_entropy_with_logits(z, labels, reduction="none")

    def objective(self, generator: torch.Generator) -> Objective:
        """Return the loss as a function of the output; labels that must be drawn are drawn once, and stay."""
        if self.loss is not None:
            return self.loss
        labels: list[Tensor] = []

        def loss(output: Any) -> Tensor:
            if not labels:
                labels.append(self.draw(output, generator))
            return self.losses_of(output, labels[0])

        return loss

    def gradients(self, loss: Tensor, *, create_graph: bool = False) -> list[Tensor]:
        """Return d loss / d parameter in the order of `parameters`, zeros where it is unused; `.grad` stays."""
        return self.derivatives([loss], create_graph=create_graph)

    def derivatives(
        self,
        of: Sequence[Tensor],
        weights: Sequence[Tensor] | None = None,
        *,
        create_graph: bool = False,
        retain_graph: bool = False,
    ) -> list[Tensor]:
        """Return sum_i weights_i d of_i / d parameter, dense, as `gradients` does."""
        with torch.autocast(self.device.type, enabled=False):  # backward goes by what forward has chosen
            found = torch.autograd.grad(
                of,
                list(self.parameters.values()),
                weights,
                retain_graph=retain_graph or create_graph,
                create_graph=create_graph,
                allow_unused=True,
                materialize_grads=True,
            )
        return [g.to_dense() if g.is_sparse else g for g in found]

    def _samples(self, output: Any) -> Tensor:
        """Return float32 (samples, classes) for a softmax, else (samples,)."""
        logits = self.logits(output)
        if self.loss_name != "cross_entropy":
            return logits.flatten().float()
        if logits.shape[-1] < 2:
            raise ValueError(
                f"the logits have shape {tuple(logits.shape)}, and a softmax over one class has no curvature; for two "
                "classes in one number give loss_name='binary_cross_entropy'."
            )
        return logits.flatten(0, -2).float()  # (samples, classes)


@contextmanager
def preserved_state(model: nn.Module) -> Generator[None]:
    """Put buffers, such as BatchNorm's statistics, and the states of random generators back after the block.

    Gradients are on in it, wherever it is.
    """
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    beside = {p.device for p in model.parameters() if is_accelerator(p.device)}
    kind = next((device.type for device in beside), "cpu")
    with torch.random.fork_rng([device.index for device in beside], device_type=kind), torch.enable_grad():
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, before in kept:
                    buffer.copy_(before)
                    setattr(module, name, buffer)
