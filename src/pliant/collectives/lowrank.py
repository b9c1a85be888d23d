"""Averages of matrices by way of thin factors: PowerSGD."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import all_finite, finite_flag, keep_unless
from pliant.codecs.kernels import kernels_for
from pliant.collectives.averaging import ShortVectorAverage
from pliant.comm.base import Comm
from pliant.layouts.division import factor_shape

__all__ = ["LowRankAverage", "first_factor"]


def first_factor(r: int, m: int) -> Tensor:
    """Return the right factor, float32 (r, m), with which matrices of m columns begin: random, alike on all ranks."""
    return torch.randn(r, m, dtype=torch.float32, generator=torch.Generator().manual_seed(m * 31 + r))


class LowRankAverage:
    """The mean of a bucket in which each large parameter is a matrix M, (n, m), sent as P Q^T of rank r.

    Phases: M <- M + e; P <- M Q for all matrices, packed in one buffer behind the parameters that stay whole;
    average; orthogonalize each P; Q <- M^T P, packed; average; M' = P Q^T; e <- M - (1 - mu) M', mu = 0 in PowerSGD. Q
    starts the next step; a row of it that has become zero is drawn anew.
    Factors lie as rows, P as (r, n) and Q as (r, m): three passes over the matrix, each as fast as memory.
    Bytes: two averages, of sum (n r) + uncompressed and of sum (m r) float32; in few rounds where they are short.

    Vogels et al., PowerSGD (arXiv:1905.13727), Algorithms 1 and 2.

    Args:
        shapes: Parameter -> shape, in the order in which they lie in the bucket.
        rank: r.
        comm: Who averages.
        device: Where the buffers lie.
        stays: mu, the share of what was sent that stays in the residual, as in a momentum.

    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        rank: int,
        comm: Comm,
        device: torch.device,
        *,
        stays: float = 0.0,
    ) -> None:
        self._stays = stays
        self._whole: list[tuple[int, int]] = []
        """Half-open ranges of the bucket that are averaged as they are."""
        self._matrices: dict[str, tuple[int, int, int, int]] = {}
        """Parameter -> (offset, n, r, m)."""
        offset = 0
        for name, shape in shapes.items():
            numel = torch.Size(shape).numel()
            factor = factor_shape(shape, rank)
            if factor is None:
                self._whole.append((offset, offset + numel))
            else:
                self._matrices[name] = (offset, shape[0], *factor)
            offset += numel
        self._num_whole = sum(stop - start for start, stop in self._whole)
        of_ps = sum(n * r for _, n, r, _ in self._matrices.values())
        of_qs = sum(r * m for _, _, r, m in self._matrices.values())
        self._first = torch.empty(self._num_whole + of_ps, dtype=torch.float32, device=device)
        self._second = torch.empty(of_qs, dtype=torch.float32, device=device)
        self._mean_first = ShortVectorAverage(self._first.numel(), comm, device)
        self._mean_second = ShortVectorAverage(self._second.numel(), comm, device)
        self._drawn: dict[str, Tensor] = {}
        """Parameter -> random factor, (r, m), once one was needed."""

    def __call__(self, x: Tensor, residual: Tensor, factors: Mapping[str, Tensor]) -> None:
        """Replace x, float32 (numel,), by the mean; residual, (numel,), and factors, parameter -> (r, m), live on.

        Rows of factors that are zero are drawn anew, alike on all ranks. If any rank's x is not finite, so is the
        result, and neither residual nor factors change.
        """
        kernels = kernels_for(x)
        ps, qs = self._views()
        at = 0
        for start, stop in self._whole:
            torch.add(x[start:stop], residual[start:stop], out=self._first[at : at + stop - start])
            at += stop - start
        for k, name in enumerate(self._matrices):
            q = factors[name]
            self._draw(name, q)
            kernels.low_rank_left(self._matrix(x, name), self._matrix(residual, name), q, ps[k])
        self._mean_first(self._first)
        kernels.orthogonalize(ps)
        for k, name in enumerate(self._matrices):
            kernels.low_rank_right(self._matrix(x, name), ps[k], qs[k])
        self._mean_second(self._second)
        # What is not finite in any x is not in P or Q.
        if is_accelerator(x.device):
            finite = finite_flag(self._first) & finite_flag(self._second)
            self._split(x, residual, factors, ps, qs, finite)
            x.masked_fill_(~finite, torch.nan)
        elif all_finite(self._first) and all_finite(self._second):
            self._split(x, residual, factors, ps, qs, None)
        else:
            x.fill_(torch.nan)

    def _draw(self, name: str, q: Tensor) -> None:
        """Fill rows of a factor, (r, m), that are zero, alike on all ranks: M had no direction for them before."""
        alive = q.any(dim=1, keepdim=True)
        if not is_accelerator(q.device) and bool(alive.all()):
            return
        if name not in self._drawn:
            self._drawn[name] = first_factor(*q.shape).to(q.device)
        q.copy_(torch.where(alive, q, self._drawn[name]))  # on an accelerator nobody waits to know whether it is zero

    def _split(
        self,
        x: Tensor,
        residual: Tensor,
        factors: Mapping[str, Tensor],
        ps: list[Tensor],
        qs: list[Tensor],
        finite: Tensor | None,
    ) -> None:
        """Leave the product of the factors in x, and the rest in residual, with what stays.

        On an accelerator residual and factors stay as they are unless `finite`, bool (), holds; nobody waits for it.
        One matrix is copied at a time.
        """
        at = 0
        for start, stop in self._whole:
            mean = self._first[at : at + stop - start]
            x[start:stop].copy_(mean)
            _take(mean * self._stays, residual[start:stop], finite)
            at += stop - start
        for k, name in enumerate(self._matrices):
            product, rest = self._matrix(x, name), self._matrix(residual, name)
            before = rest if finite is None else rest.clone()
            kernels_for(x).low_rank_split(product, rest, ps[k], qs[k])
            if self._stays:
                rest.add_(product, alpha=self._stays)
            if finite is not None:
                torch.where(finite, rest, before, out=rest)
            _take(qs[k], factors[name], finite)

    def _matrix(self, x: Tensor, name: str) -> Tensor:
        offset, n, _, m = self._matrices[name]
        return x[offset : offset + n * m].view(n, m)

    def _views(self) -> tuple[list[Tensor], list[Tensor]]:
        ps: list[Tensor] = []
        qs: list[Tensor] = []
        first, second = self._num_whole, 0
        for _, n, r, m in self._matrices.values():
            ps.append(self._first[first : first + n * r].view(r, n))
            qs.append(self._second[second : second + m * r].view(r, m))
            first, second = first + r * n, second + r * m
        return ps, qs


def _take(value: Tensor, into: Tensor, finite: Tensor | None) -> None:
    """Let a tensor become a value, unless there is a flag that does not hold."""
    if finite is None:
        into.copy_(value)
    else:
        keep_unless(finite, into, value)
