"""Statistics of gradients: their noise, and the errors of codecs on copies of them, measured beside training."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pliant.buckets import as_real
from pliant.codecs import Codec, spec_of
from pliant.comm import Comm
from pliant.layouts.division import factor_shape
from pliant.profiling.row_counts import SparseRowCounts
from pliant.spec import LowRank, TensorSpec

__all__ = ["GradientSample", "GradientStatistics", "noise_scale"]

_SKETCH = 8192
"""Numbers that stand for a gradient when ranks compare theirs: norms of larger ones are right to 1.6 % a step."""


@dataclass(frozen=True, kw_only=True)
class GradientSample:
    """Statistics of some steps, over all ranks."""

    steps: int
    shares: Mapping[str, float]
    """Parameter -> its part of the squared norm of the ranks' gradients."""
    errors: Mapping[str, Mapping[str, float]]
    """Parameter -> codec -> squared error over squared norm; nothing for a gradient that was zero."""
    own: float
    """Squared norm of a rank's gradient, mean over ranks, summed over steps."""
    together: float
    """Squared norm of the mean gradient, summed over steps."""
    sparse: Mapping[str, tuple[float, float]]
    """Parameter with a sparse gradient -> its rows, and the distinct among all ranks' rows (`SparseRowCounts`)."""

    def with_rows(self, tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Return the tensors with the rows of those whose gradients are sparse."""
        known = [(tensor, *self.sparse.get(tensor.name, (0.0, 1.0))) for tensor in tensors]
        return [replace(tensor, sparse_rows=rows, distinct=distinct) for tensor, rows, distinct in known]


class GradientStatistics:
    """Takes each rank's own gradients, and keeps squared norms, squared errors of codecs, and a sketch of each step.

    A sketch adds up the elements of a gradient, with random signs that all ranks share, at place i mod 8192 (Alon,
    Matias and Szegedy, "The space complexity of approximating the frequency moments", 1999; folded). It is linear, so
    the mean of the ranks' sketches is the sketch of the mean gradient, and its squared norm that gradient's on average;
    for models of up to 8192 elements, exactly. So ranks send 64 KB for each step, and not a gradient.
    """

    def __init__(self, numels: Mapping[str, int], codecs: Sequence[Codec], ranks: Sequence[int] = ()) -> None:
        self._codecs = {str(spec_of(codec)): codec for codec in codecs}
        self._ranks = {LowRank(rank=rank).coding: rank for rank in ranks}
        self._names = list(numels)
        starts = torch.tensor([0, *numels.values()]).cumsum(0).tolist()
        self._starts: dict[str, int] = dict(zip(self._names, starts, strict=False))
        self._step: dict[str, Tensor] = {}
        self._sketch_of: dict[str, Tensor] = {}
        self._sketches: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._row_counts = SparseRowCounts()

    def take(self, name: str, gradient: Tensor) -> None:
        """Look at one parameter's gradient; a later call for the same step takes the place of an earlier one."""
        self._row_counts.take(name, gradient)
        dense = as_real(gradient.detach().to_dense() if gradient.is_sparse else gradient.detach())
        x = dense.reshape(-1).float().contiguous()  # (numel,)
        seed = zlib.crc32(f"{len(self._rows)} {name}".encode())  # a generator of torch takes 32 bits of a seed
        row = [_square(x)]
        for codec in self._codecs.values():
            payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8, device=x.device)
            decoded = torch.empty_like(x)
            codec.encode(x, payload, seed)
            codec.decode(payload, decoded)
            row.append(_square(decoded.sub_(x)))
        row += [_beyond_rank(x.view(dense.shape), rank, seed) for rank in self._ranks.values()]
        self._step[name] = torch.stack(row).cpu()
        self._sketch_of[name] = self._sketch(name, x, seed)

    def end_step(self) -> None:
        """Count what was taken."""
        self._row_counts.end_step()
        rows = torch.zeros(len(self._names), 1 + len(self._codecs) + len(self._ranks), dtype=torch.float64)
        for name, row in self._step.items():
            rows[self._names.index(name)] = row
        self._rows.append(rows)
        self._sketches.append(sum(self._sketch_of.values(), torch.zeros(_SKETCH, dtype=torch.float64)))
        self._step, self._sketch_of = {}, {}

    def share(self, comm: Comm, device: torch.device) -> "GradientSample":
        """Return what all ranks saw together. Collective; all have counted the same number of steps.

        A step in which any rank had a NaN or Inf, as those that a GradScaler skips, counts for nothing.
        """
        sparse = self._row_counts.share(self._names, comm, device)
        finite = torch.tensor([int(rows.isfinite().all()) for rows in self._rows], dtype=torch.int64, device=device)
        if finite.numel():
            comm.all_reduce(finite, "min").wait()
        kept = [k for k, sound in enumerate(finite.tolist()) if sound]
        if not kept:
            return GradientSample(steps=0, shares={}, errors={}, own=0.0, together=0.0, sparse=sparse)
        sums = torch.stack([self._rows[k] for k in kept]).sum(0).to(device)  # (tensors, 1 + codecs + ranks)
        comm.all_reduce(sums).wait()
        sketches = torch.stack([self._sketches[k] for k in kept]).to(device)  # (steps, _SKETCH)
        comm.all_reduce(sketches).wait()
        total = float(sums[:, 0].sum())
        rows = dict(zip(self._names, sums.tolist(), strict=True))
        return GradientSample(
            steps=len(kept),
            shares={name: row[0] / total if total else 0.0 for name, row in rows.items()},
            errors={
                name: {
                    codec: error / row[0] for codec, error in zip((*self._codecs, *self._ranks), row[1:], strict=True)
                }
                for name, row in rows.items()
                if row[0]
            },
            own=total / comm.size,
            together=float((sketches / comm.size).square().sum()),
            sparse=sparse,
        )

    def _sketch(self, name: str, x: Tensor, seed: int) -> Tensor:
        """Return a parameter's part of the sketch, float64 (_SKETCH,), on the CPU."""
        generator = torch.Generator(x.device).manual_seed(seed)
        bits = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8, device=x.device)
        start = self._starts[name] % _SKETCH
        folded = x.new_zeros(-(-(start + x.numel()) // _SKETCH) * _SKETCH)
        folded[start : start + x.numel()] = torch.where(bits.bool(), x, -x)
        return folded.view(-1, _SKETCH).sum(0, dtype=torch.float64).cpu()


def noise_scale(own: float, together: float, size: int, batch_size: int) -> float | None:
    """Return tr(Sigma) / |G|^2 in samples (B_simple), or None if it cannot be told: one rank, or nothing but noise.

    McCandlish et al., arXiv:1812.06162, appendix A.1, with B_small = batch_size and B_big = size * batch_size:
    |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small),
    tr(Sigma) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big).

    Args:
        own: Mean over ranks of |G_small|^2, summed over steps.
        together: |G_big|^2 of the mean over ranks, summed over as many steps.
        size: Ranks.
        batch_size: Samples of one rank.

    """
    if size == 1:
        return None
    signal = (size * together - own) / (size - 1)
    noise = max(0.0, own - together) * size * batch_size / (size - 1)
    return noise / signal if signal > 0 else None


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float64).square()


def _beyond_rank(x: Tensor, rank: int, seed: int) -> Tensor:
    """Return the squared norm of a parameter's gradient outside a low rank; 0 if it would be sent whole.

    M - P P^T M, with P from four rounds of subspace iteration: PowerSGD (arXiv:1905.13727) makes one in each step, and
    starts from the step before, so that it comes near the best P of its rank.
    """
    factor = factor_shape(tuple(x.shape), rank)
    if factor is None or not x.isfinite().all():  # a step that is not finite counts for nothing anyway
        return torch.zeros((), dtype=torch.float64, device=x.device)
    matrix = x.reshape(x.shape[0], -1)  # (n, m)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(factor[1], factor[0], dtype=torch.float32, generator=generator).to(x.device)  # (m, r)
    for _ in range(3):
        q = matrix.T @ torch.linalg.qr(matrix @ q).Q
    p = torch.linalg.qr(matrix @ q).Q  # (n, r)
    return _square(torch.addmm(matrix, p, p.T @ matrix, alpha=-1))
