"""The Hessian itself, through its products with vectors: by double backward, or by differences of gradients."""

import re
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pliant.curvature.objective import LossObjective, preserved_state

__all__ = ["By", "Hutchinson", "hessian", "rademacher"]

By = Literal["product", "difference", "auto"]
"""How to multiply: by double backward, by differences of gradients, or by the first that the model's kernels allow."""
Product = Callable[[Sequence[Tensor]], list[Tensor]]

_DISTANCE = 1e-3
"""Of the two points of a difference from the weights, as a part of the weights' norm: rounding and the third derivative
are both small there in float32."""
_MISSING = re.compile(r"not implemented|not supported|double backward", re.IGNORECASE)

_twice: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()
"""Model -> whether it was found to have a double backward."""


@contextmanager
def hessian(task: LossObjective, generator: torch.Generator, by: By = "auto") -> Generator[Product]:
    """Give, for the block, the function v -> H v; both have a float32 tensor for each of `task.parameters`.

    H is the Hessian of the mean loss on this batch, as in training: BatchNorm couples samples, and dropout has one and
    the same mask throughout. "auto" takes products, and where a kernel has no double backward, as
    `scaled_dot_product_attention` mostly has none, differences, which it says in a warning, once for each model.
    """
    if by == "auto":
        by = "product" if _has_double_backward(task) else "difference"
    with preserved_state(task.model):
        if by == "product":
            yield _by_backward(task, generator)
        else:
            yield _by_difference(task, generator)


def rademacher(task: LossObjective, generator: torch.Generator) -> list[Tensor]:
    """Return random signs, float32, of the shapes of the task's parameters."""
    return [
        torch.randint(0, 2, p.shape, generator=generator, device=p.device).float().mul_(2).sub_(1)
        for p in task.parameters.values()
    ]


def _by_backward(task: LossObjective, generator: torch.Generator) -> Product:
    loss = task.objective(generator)(task.forward()).mean()
    gradients = task.gradients(loss, create_graph=True)
    bent = [k for k, g in enumerate(gradients) if g.requires_grad]  # others are constant: unused, or a linear loss

    def product(v: Sequence[Tensor]) -> list[Tensor]:
        if not bent:
            return [torch.zeros_like(x) for x in v]
        weights = [v[k].to(gradients[k].dtype) for k in bent]
        return [x.float() for x in task.derivatives([gradients[k] for k in bent], weights, retain_graph=True)]

    return product


def _by_difference(task: LossObjective, generator: torch.Generator) -> Product:
    """H v = (g(w + e v) - g(w - e v)) / 2 e, on the same batch, masks and labels, in full precision."""
    parameters = list(task.parameters.values())
    coarse = {str(p.dtype) for p in parameters if p.dtype not in (torch.float32, torch.float64)}
    if coarse:
        raise ValueError(
            f"differences of gradients need weights in float32, but the model has some in {', '.join(sorted(coarse))}, "
            "where they would be nothing but rounding; use GaussNewton, or keep weights in float32 under autocast."
        )
    objective = task.objective(generator)
    if task.loss is None:
        with preserved_state(task.model), torch.no_grad():
            objective(task.forward())  # labels are drawn here, at the weights themselves
    kept = [p.detach().clone() for p in parameters]
    norm = float(torch.stack([x.norm() for x in kept]).norm())

    def gradients() -> list[Tensor]:
        # Each begins with the same state.
        with preserved_state(task.model), torch.autocast(task.device.type, enabled=False):
            return task.gradients(objective(task.forward()).mean())

    def product(v: Sequence[Tensor]) -> list[Tensor]:
        length = float(torch.stack([x.norm() for x in v]).norm())
        if not length:
            return [torch.zeros_like(x) for x in v]
        step = _DISTANCE * (norm or 1.0) / length
        ends: list[list[Tensor]] = []
        try:
            for sign in (1, -1):
                with torch.no_grad():
                    for p, x, direction in zip(parameters, kept, v, strict=True):
                        p.copy_(x + sign * step * direction)
                ends.append(gradients())
        finally:
            with torch.no_grad():
                for p, x in zip(parameters, kept, strict=True):
                    p.copy_(x)
        return [(ahead - behind).float().div_(2 * step) for ahead, behind in zip(*ends, strict=True)]

    return product


def _has_double_backward(task: LossObjective) -> bool:
    if task.model not in _twice:
        signs = torch.Generator(task.device).manual_seed(0)
        try:
            with hessian(task, signs, "product") as product:
                product(rademacher(task, signs))
            _twice[task.model] = True
        except RuntimeError as error:
            if not _MISSING.search(str(error)):
                raise
            warnings.warn(
                f"{type(task.model).__name__} has a kernel without double backward ({str(error).splitlines()[0]}), so "
                "its Hessian is felt by differences of gradients instead; say by='difference' to mean it, or let "
                "attention run under torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
                stacklevel=2,
            )
            _twice[task.model] = False
    return _twice[task.model]


@dataclass(frozen=True, kw_only=True)
class Hutchinson:
    """The diagonal of the Hessian itself: E[v o H v] over random signs v (Bekas et al., 2007; arXiv:2006.00719).

    Unbiased, with negative values where the loss curves downwards, and noisy: what other weights contribute has mean
    zero only. See `hessian` for the two ways to multiply.

    Cost: by products about two to four times a forward and backward for the first probe, and by differences two
    forwards and backwards for each.

    Raises:
        ValueError: There is no probe.

    """

    probes: int = 1
    by: By = "auto"

    def __post_init__(self) -> None:
        if self.probes < 1:
            raise ValueError(f"Hutchinson got {self.probes} probes, but an estimate needs at least 1.")

    def diagonal(self, task: LossObjective, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean of v o H v over the probes."""
        sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in task.parameters.items()}
        with hessian(task, generator, self.by) as product:
            for _ in range(self.probes):
                v = rademacher(task, generator)
                for total, x, hx in zip(sums.values(), v, product(v), strict=True):
                    total.addcmul_(x, hx, value=1 / self.probes)
        return sums
