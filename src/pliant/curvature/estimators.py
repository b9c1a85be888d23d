"""Estimates of the Hessian's diagonal that need first derivatives only."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pliant.curvature.objective import LossObjective, preserved_state

__all__ = ["Estimator", "Fisher", "GaussNewton"]


class Estimator(Protocol):
    """A way to look at the diagonal of the Hessian of the mean loss: a frozen value."""

    def diagonal(self, task: LossObjective, generator: torch.Generator) -> dict[str, Tensor]:
        """Return, for each trained parameter, an estimate of its part of the diagonal: float32, of its shape.

        No communication, and the model comes out as it was: parameters, gradients, buffers, torch's generators.

        Args:
            task: What to look at.
            generator: On the model's device; what is drawn comes from it alone.

        """
        ...


@dataclass(frozen=True, kw_only=True)
class GaussNewton:
    """Gauss-Newton-Bartlett: B g o g, with g the mean gradient of B samples whose labels the model itself has drawn.

    Liu et al., Sophia (arXiv:2305.14342), algorithm 2. Under such labels gradients of samples have mean zero and are
    independent, so that E[B g o g] is the mean over samples of E[g_i o g_i], and by Bartlett's second identity that is
    the diagonal of the Gauss-Newton matrix J' (diag(p) - p p') J, exactly. It is never negative. One draw has a
    relative deviation of about sqrt(2) for a single weight; means over blocks have less.

    Cost: one forward and one backward, of first order: every attention kernel works. Needs logits.
    """

    def diagonal(self, task: LossObjective, generator: torch.Generator) -> dict[str, Tensor]:
        with preserved_state(task.model):
            losses = task.sample_labels(task.forward(), generator)  # (B,)
            gradients = task.gradients(losses.sum() / math.sqrt(losses.numel()))  # each sqrt(B) g
        return {name: g.float().square() for name, g in zip(task.parameters, gradients, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Fisher:
    """Empirical Fisher: the mean over samples of g_i o g_i, with the labels of the data.

    It is not the square of the mean gradient, which optimizers keep: for independent samples
    E[B g o g] = mean g_i o g_i + (B - 1) (E g)^2, where the second term is signal and no curvature. Nor is it the
    Hessian: with the labels of the data it goes to zero where these are learned by heart, and the curvature does not
    (Kunstner et al., arXiv:1905.12558). A loss that returns the losses of samples is needed; where the task has none,
    labels are drawn from the model, which makes it the Fisher matrix, that is, Gauss-Newton's with less noise.

    Cost: one forward, and a backward for each sample, since samples may be coupled, as by BatchNorm.
    """

    def diagonal(self, task: LossObjective, generator: torch.Generator) -> dict[str, Tensor]:
        sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in task.parameters.items()}
        with preserved_state(task.model):
            losses = task.objective(generator)(task.forward())
            if losses.dim() != 1:
                raise ValueError(
                    f"Fisher needs the loss of each sample, (samples,), but the task's loss has shape "
                    f"{tuple(losses.shape)}; return it unreduced, as with cross_entropy(..., reduction='none')."
                )
            for loss in losses:
                for total, g in zip(sums.values(), task.derivatives([loss], retain_graph=True), strict=True):
                    total.addcmul_(g.float(), g.float(), value=1 / losses.numel())
        return sums
