# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""AdamW with a slow momentum beside the gradient itself, which outlasts a period of local steps."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.own_optimizer import OwnOptimizer
from pliant.buckets import as_real

__all__ = ["SlowAdamW"]


class SlowAdamW(OwnOptimizer):
    """Quasi-hyperbolic AdamW: the step is a weighted mean of the gradient and of a momentum that forgets slowly.

    Ma and Yarats, QHAdam (arXiv:1810.06801), as in MT-DAO with one momentum (Iacob et al., arXiv:2510.05361):

        p <- (1 - lr weight_decay) p;   m <- b1 m + (1 - b1) g;   v <- b2 v + (1 - b2) g^2
        p <- p - lr ((1 - w) g + w m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),   w = slow_weight

    After K local steps b1^K of what ranks had in common in m is left: after 32 steps 0.03 at 0.9, and 0.97 at 0.999. So
    slow a momentum would react too late by itself; the gradient beside it repairs that. With `slow_weight` 1 it is
    torch.optim.AdamW. Keeps what AdamW keeps, under the same names: two numbers per element, and a count of steps.

    Args:
        params: Parameters or groups, as for every torch optimizer.
        lr: Learning rate.
        betas: Decay of momentum, and of variance.
        slow_weight: Weight of the momentum in the step, from 0 to 1; the gradient has the rest.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay.

    Raises:
        ValueError: A setting is out of its range.
        RuntimeError: In `step`, if a gradient is sparse.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SlowAdamW([weight], lr=0.1, weight_decay=0.0)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.detach()
    tensor([0.9000, 0.9000])

    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.999, 0.999),
        slow_weight: float = 0.7,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError(f"lr, eps and weight_decay must be at least 0, got {lr}, {eps} and {weight_decay}.")
        if not all(0 <= beta < 1 for beta in betas) or not 0 <= slow_weight <= 1:
            raise ValueError(
                f"betas must be at least 0 and below 1, slow_weight from 0 to 1, got {betas} and {slow_weight}."
            )
        settings = {"lr": lr, "betas": betas, "slow_weight": slow_weight, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for p in parameters:
            alike.setdefault((p.device, p.dtype), []).append(p)
        for together in alike.values():
            self._step_together(together, group)

    def _step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step parameters of one type on one device."""
        lr, (b1, b2), w = float(group["lr"]), group["betas"], group["slow_weight"]
        states = [self._count(p) for p in parameters]
        steps = [float(state["step"]) for state in states]
        ps = [as_real(p) for p in parameters]  # complex numbers count as pairs of real ones, as in torch's Adam
        gs = [as_real(p.grad) for p in parameters if p.grad is not None]
        ms, vs = ([as_real(state[key]) for state in states] for key in ("exp_avg", "exp_avg_sq"))
        torch._foreach_mul_(ps, 1 - lr * group["weight_decay"])
        torch._foreach_lerp_(ms, gs, 1 - b1)
        torch._foreach_mul_(vs, b2)
        torch._foreach_addcmul_(vs, gs, gs, 1 - b2)
        directions = torch._foreach_mul(ms, [w / (1 - b1**t) for t in steps])
        torch._foreach_add_(directions, gs, alpha=1 - w)
        denominators = torch._foreach_sqrt(vs)
        torch._foreach_div_(denominators, [(1 - b2**t) ** 0.5 for t in steps])
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_addcdiv_(ps, directions, denominators, -lr)

    def _count(self, p: Tensor) -> dict[str, Any]:
        """Return a parameter's state, with this step counted."""
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError(
                "SlowAdamW needs dense gradients, but got a sparse one; make the layer with sparse=False."
            )
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        return state
