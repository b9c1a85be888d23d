"""The passes of PowerSGD in plain torch: the same as lowrank.c, to the bit where nothing is summed up along a row."""

import torch
from torch import Tensor

__all__ = ["low_rank_left", "low_rank_right", "low_rank_split"]


def low_rank_left(x: Tensor, residual: Tensor, q: Tensor, p: Tensor) -> None:
    torch.mm(q, x.add_(residual).t(), out=p)


def low_rank_right(x: Tensor, p: Tensor, q: Tensor) -> None:
    torch.mm(p, x, out=q)


def low_rank_split(x: Tensor, residual: Tensor, p: Tensor, q: Tensor) -> None:
    t = torch.outer(p[0], q[0])
    for k in range(1, len(q)):
        t += torch.outer(p[k], q[k])
    torch.sub(x, t, out=residual)
    x.copy_(t)
