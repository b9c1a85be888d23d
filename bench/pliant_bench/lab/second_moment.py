"""AdamW whose second moments are the same on all ranks: what it would gain from that in local steps."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Mean", "SharedMomentAdamW"]

Mean = Callable[[Sequence[Tensor]], list[Tensor]]
"""Returns the means of tensors over all ranks. Collective."""


class SharedMomentAdamW(Optimizer):
    """AdamW with torch's equations and defaults, but for the second moment v.

    With `of` "gradient", v is that of the mean gradient of all ranks, as in 0/1 Adam (Lu et al., arXiv:2202.06009): in
    every step at first, then in every `period`-th with beta2^period, and unchanged between. With "moment" a rank's v is
    of its own gradient, as ever, and becomes the mean over ranks after each `period`-th update.

    Args:
        params: Parameters, all with gradients in every step.
        mean: Means over ranks.
        lr: Learning rate.
        of: What is averaged.
        period: Steps from one average to the next.
        dense_steps: Steps at the beginning, each with an average.

    """

    def __init__(
        self,
        params: Sequence[Tensor],
        mean: Mean,
        *,
        lr: float,
        of: Literal["gradient", "moment"],
        period: int = 1,
        dense_steps: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})
        self._mean, self._of, self._period, self._dense_steps = mean, of, period, dense_steps
        self._steps = 0
        self._counted = 0
        """Steps whose gradients v stands for."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Average what is due, then make AdamW's step with it. Collective when it averages."""
        [group] = self.param_groups
        lr, (beta1, beta2), parameters = group["lr"], group["betas"], list[Tensor](group["params"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                zeros = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                self.state[parameter].update(zeros)
        first, second = ([self.state[p][key] for p in parameters] for key in ("exp_avg", "exp_avg_sq"))
        self._steps += 1
        self._update(second, gradients, beta2)
        corrections = 1 - beta1**self._steps, (1 - beta2**self._counted) ** 0.5
        for parameter, gradient, m, v in zip(parameters, gradients, first, second, strict=True):
            m.lerp_(gradient, 1 - beta1)
            scale = v.sqrt().div_(corrections[1]).add_(group["eps"])
            parameter.mul_(1 - lr * group["weight_decay"]).addcdiv_(m, scale, value=-lr / corrections[0])

    def _update(self, second: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        is_due = self._steps <= max(self._dense_steps, 1) or self._steps % self._period == 0
        if self._of == "gradient":
            if not is_due:
                return
            gradients = self._mean(gradients)
        decay = beta2 ** (self._steps - self._counted)
        self._counted = self._steps
        for v, gradient in zip(second, gradients, strict=True):
            v.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        if self._of == "moment" and is_due:
            for v, mean in zip(second, self._mean(second), strict=True):
                v.copy_(mean)
