"""Optimizers that touch only the rows which have a gradient, each once in a step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.spec.embedding import STATE_NUMBERS, RowOptimizer

__all__ = ["RowRule", "TableRows"]

_BLOCK_NUMBERS = 1 << 18
"""Numbers updated at a time: what is in between stays in the cache, and memory bounded."""


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """Rule by which a gradient changes a row.

    - 'sgd': w -= lr g
    - 'adagrad' (Duchi et al., 2011): s += g^2; w -= lr g / (sqrt(s) + eps)
    - 'rowwise_adagrad' (Gupta et al., 2014; as in FBGEMM): one s for a row, s += mean(g^2)
    - 'adam' (Kingma and Ba, arXiv:1412.6980), lazy: the moments of a row change, and its steps count, only when it
      has a gradient; as `torch.optim.SparseAdam`, but steps are counted for each row.
    """

    kind: RowOptimizer
    eps: float | None = None
    """None: 1e-8 for Adam, 1e-10 for the others, as in torch."""
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.kind not in STATE_NUMBERS:
            raise ValueError(f"there is no optimizer {self.kind!r} of rows; use one of {', '.join(STATE_NUMBERS)}.")
        if (self.eps is not None and self.eps <= 0) or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"eps is {self.eps} and betas {self.betas}; eps is above 0, betas from 0 to below 1.")

    @property
    def epsilon(self) -> float:
        """Smallest number that is divided by."""
        return self.eps or (1e-8 if self.kind == "adam" else 1e-10)


class TableRows:
    """Rows and what their optimizer keeps: `weights` (num, dim), `elements` (k, num, dim), `numbers` (m, num)."""

    def __init__(self, num: int, dim: int, kind: RowOptimizer, device: torch.device) -> None:
        per_element, per_row = STATE_NUMBERS[kind]
        self.weights = torch.zeros(num, dim, dtype=torch.float32, device=device)
        self.elements = torch.zeros(per_element, num, dim, dtype=torch.float32, device=device)
        self.numbers = torch.zeros(per_row, num, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self.weights.nbytes + self.state_nbytes

    @property
    def state_nbytes(self) -> int:
        """Bytes of what the optimizer keeps."""
        return self.elements.nbytes + self.numbers.nbytes

    def read(self, slots: Tensor) -> Tensor:
        """Return all that belongs to these rows, float32 (len(slots), numbers of a row)."""
        parts = [self.weights[slots], *(e[slots] for e in self.elements), *(n[slots, None] for n in self.numbers)]
        return torch.cat(parts, 1)

    def write(self, slots: Tensor, values: Tensor) -> None:
        """Put back what `read` returned, here or on another rank."""
        dim = self.weights.shape[1]
        self.weights[slots] = values[:, :dim]
        for k in range(len(self.elements)):
            self.elements[k, slots] = values[:, dim * (k + 1) : dim * (k + 2)]
        for m in range(len(self.numbers)):
            self.numbers[m, slots] = values[:, dim * (1 + len(self.elements)) + m]

    def update(self, slots: Tensor, gradients: Tensor, rule: RowRule, lr: float) -> None:
        """Apply gradients, float32 (len(slots), dim), to rows at these slots, int64; none is there twice.

        Products are rounded before sums, on all devices.
        """
        kernels = kernels_for(self.weights)
        block = max(1, _BLOCK_NUMBERS // self.weights.shape[1])
        for part, g in zip(slots.split(block), gradients.split(block), strict=True):
            if rule.kind == "adagrad":
                roots = kernels.add_squares(self.elements[0], part, g).sqrt_()
                kernels.subtract_ratios(self.weights, part, g, roots, lr=lr, eps=rule.epsilon)
            else:
                kernels.subtract_rows(self.weights, part, self._change(part, g, rule, lr))

    def _change(self, slots: Tensor, g: Tensor, rule: RowRule, lr: float) -> Tensor:
        """Update what is kept of these rows, and return what is taken from them."""
        if rule.kind == "sgd":
            return g * lr
        if rule.kind == "rowwise_adagrad":
            s = self.numbers[0].index_select(0, slots).add_((g * g).mean(1))
            self.numbers[0][slots] = s
            return g * (lr / s.sqrt_().add_(rule.epsilon))[:, None]
        return self._adam(slots, g, rule, lr)

    def _adam(self, slots: Tensor, g: Tensor, rule: RowRule, lr: float) -> Tensor:
        b1, b2 = rule.betas
        m = self.elements[0].index_select(0, slots).mul_(b1).add_(g * (1 - b1))
        v = self.elements[1].index_select(0, slots).mul_(b2).add_((g * g).mul_(1 - b2))
        t = self.numbers[0].index_select(0, slots).add_(1)
        self.elements[0][slots], self.elements[1][slots], self.numbers[0][slots] = m, v, t
        exact = t.double()  # powers in float32 would depend on where in a vector register a row is
        first = (lr / (1 - b1**exact)).float()[:, None]
        second = (1 / (1 - b2**exact).sqrt()).float()[:, None]
        return m.mul_(first).div_(v.sqrt_().mul_(second).add_(rule.epsilon))
