"""Dion: Muon of low rank, whose momentum keeps what a step leaves out."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from pliant.algorithms.own_optimizer import OwnOptimizer
from pliant.collectives.lowrank import first_factor

__all__ = ["Dion"]


class Dion(OwnOptimizer):
    """Orthogonal steps of low rank: the leading part of a momentum, with columns of equal length.

    Ahn et al., Dion (arXiv:2504.05295), Algorithm 1, for a weight W, (n, m), with P, (n, r), and Q and R, (m, r):

        M <- M + g;   P <- orthonormal columns of M Q;   R <- M^T P;   M <- M - (1 - mu) P R^T
        Q <- R, each column over its length;   W <- (1 - lr weight_decay) W - lr sqrt(n / m) P Q^T

    Directions that a step leaves out stay in M whole, so that they come later. Q begins random, alike on all ranks.

    Matrices only: give embeddings, the head and vectors to AdamW. Under ``relax(model, [dion, adamw], "dion")`` ranks
    exchange P and R of momenta of their own, and what comes is the mean of P R^T. Then `momentum` must be 0 here: no M
    is kept, and the step finds the same P and Q in what comes. Under any other algorithm it is as it stands here.

    Args:
        params: Matrices or groups of them, as for every torch optimizer.
        lr: Learning rate.
        rank: r; of smaller matrices, their smaller side.
        momentum: mu; 0 where the exchange keeps the momentum.
        weight_decay: Decoupled weight decay.
        eps: Added to the lengths of columns.
        adjust_lr_fn: None for the sqrt(n / m) of the paper; "match_rms_adamw" for 0.2 sqrt(n m / r), with which an
            update is as large as AdamW's, as of torch's Muon.

    Raises:
        ValueError: A setting is out of its range, or a parameter is no matrix.
        RuntimeError: In `step`, if a gradient is sparse.

    >>> weight = torch.nn.Parameter(torch.ones(2, 2))
    >>> optimizer = Dion([weight], lr=0.1, rank=1, weight_decay=0.0)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.detach()
    tensor([[0.9500, 0.9500],
            [0.9500, 0.9500]])

    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.01,
        *,
        rank: int = 64,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        eps: float = 1e-8,
        adjust_lr_fn: Literal["match_rms_adamw"] | None = None,
    ) -> None:
        settings = {"lr": lr, "rank": rank, "momentum": momentum, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, {**settings, "adjust_lr_fn": adjust_lr_fn})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices, with settings of its own or the defaults.

        Raises:
            ValueError: As for the constructor; nothing has changed.

        """
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for w in parameters:
            self._step_one(w, group)

    def _step_one(self, w: Tensor, group: dict[str, Any]) -> None:
        g = w.grad
        if g is None or not w.numel():
            return
        if g.is_sparse:
            raise RuntimeError("Dion needs dense gradients, but got a sparse one; make the layer with sparse=False.")
        n, m = w.shape
        mu, r = group["momentum"], min(group["rank"], n, m)
        state: dict[str, Any] = self.state[w]
        exact = torch.promote_types(w.dtype, torch.float32)  # 16 bits are too few for orthogonal columns
        if "q" not in state:
            state["q"] = first_factor(r, m).to(w)  # of its type, to which torch rounds what it loads; columns are rows
        if mu and "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(w)
        momentum = state["momentum_buffer"].add_(g) if mu else g
        whole = momentum.to(exact)
        before = state["q"].to(exact)
        p, _ = torch.linalg.qr(whole @ before.T)
        right = p.T @ whole
        if mu:
            momentum.sub_((p @ right).to(w.dtype), alpha=1 - mu)
        lengths = torch.linalg.vector_norm(right, dim=1, keepdim=True)
        q = right / (lengths + group["eps"])
        state["q"] = torch.where(lengths > 0, q, before).to(w.dtype)  # zeros would find no direction in the next step
        scale = math.sqrt(n / m) if group["adjust_lr_fn"] is None else 0.2 * math.sqrt(n * m / r)
        w.mul_(1 - group["lr"] * group["weight_decay"])
        w.sub_((p @ q).to(w.dtype), alpha=group["lr"] * scale)


def _check_group(group: dict[str, Any]) -> None:
    """Raise ValueError for settings out of their ranges, and for what is no matrix."""
    lr, eps, weight_decay, rank, momentum = (group[k] for k in ("lr", "eps", "weight_decay", "rank", "momentum"))
    if lr < 0 or eps < 0 or weight_decay < 0:
        raise ValueError(f"lr, eps and weight_decay must be at least 0, got {lr}, {eps} and {weight_decay}.")
    if rank < 1 or not 0 <= momentum < 1:
        raise ValueError(
            f"rank must be at least 1, momentum at least 0 and below 1, got {rank} and {momentum}; 0 is for an "
            "exchange that keeps the momentum."
        )
    if group["adjust_lr_fn"] not in (None, "match_rms_adamw"):
        raise ValueError(f"adjust_lr_fn must be None or 'match_rms_adamw', got {group['adjust_lr_fn']!r}.")
    for p in group["params"]:
        if p.ndim != 2 or p.is_complex() or hasattr(p, "placements"):  # as those of a DTensor
            raise ValueError(
                f"Dion steps whole matrices of real numbers, but got a {type(p).__name__} of {p.dtype} with the "
                f"shape {tuple(p.shape)}; give it to another optimizer, as in [Dion(matrices), AdamW(others)]."
            )
