"""The passes of PowerSGD in plain torch: the same as lowrank.c, to the bit where nothing is summed up along a row."""

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["low_rank_left", "low_rank_right", "low_rank_split", "orthogonalize"]


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


def orthogonalize(ps: Iterable[Tensor]) -> None:
    """Make the rows of each p, (r, n), orthonormal in place by modified Gram-Schmidt, from equal bits on every rank.

    A row that depends on the ones before it becomes zero: what is left of it is rounding, and points anywhere.
    """
    for p in ps:
        before = torch.linalg.vector_norm(p, dim=1)  # (r,)
        for j, row in enumerate(p):
            norm = torch.linalg.vector_norm(row)
            row.mul_(torch.where(norm <= 1e-5 * before[j], 0.0, 1 / norm))
            if len(later := p[j + 1 :]):
                later.addr_(torch.mv(later, row), row, alpha=-1)
