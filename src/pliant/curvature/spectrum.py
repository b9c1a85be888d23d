"""Figures of the whole Hessian: its trace with an interval, and its largest eigenvalues."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

import torch
from torch import Tensor

from pliant.curvature.hessian import By, hessian, rademacher
from pliant.curvature.objective import LossObjective

__all__ = ["TraceEstimate", "top_eigenvalues", "hessian_trace"]

_FEWEST = 5
_NOTHING = 1e-7
"""Of a vector, as a part of the largest eigenvalue, below which it is rounding."""


@dataclass(frozen=True, kw_only=True)
class TraceEstimate:
    """A trace that was estimated."""

    value: float
    low: float
    """With `high`, the interval that holds the true trace of this batch's Hessian with the confidence asked for."""
    high: float
    parameters: Mapping[str, float]
    """What each parameter contributes: the trace of its own part of the diagonal."""


def hessian_trace(
    task: LossObjective, generator: torch.Generator, *, probes: int = 30, confidence: float = 0.95, by: By = "auto"
) -> TraceEstimate:
    """Estimate the trace of the Hessian of the mean loss, as the mean of v'Hv over random signs (Hutchinson, 1989).

    The interval is Student's t around the mean of the probes.

    Args:
        task: What to look at.
        generator: On the model's device.
        probes: Products to make, at least 5.
        confidence: How often an interval made in this way holds the true value.
        by: How to multiply; see `hessian`.

    Raises:
        ValueError: Too few probes for an interval, or a confidence that is none.

    """
    if probes < _FEWEST or not 0 < confidence < 1:
        raise ValueError(
            f"trace() got {probes} probes and confidence {confidence}; an interval needs at least {_FEWEST} probes and "
            "a confidence between 0 and 1."
        )
    seen: list[list[float]] = []
    with hessian(task, generator, by) as product:
        for _ in range(probes):
            v = rademacher(task, generator)
            seen.append([float((x * hx).sum(dtype=torch.float64)) for x, hx in zip(v, product(v), strict=True)])
    totals = [sum(row) for row in seen]
    value = mean(totals)
    half = _student_t(confidence, probes - 1) * stdev(totals) / math.sqrt(probes)
    columns = zip(*seen, strict=True)
    own = {name: mean(column) for name, column in zip(task.parameters, columns, strict=True)}
    return TraceEstimate(value=value, low=value - half, high=value + half, parameters=own)


def top_eigenvalues(
    task: LossObjective,
    generator: torch.Generator,
    num: int = 1,
    *,
    tolerance: float = 1e-3,
    max_products: int = 100,
    by: By = "auto",
) -> list[float]:
    """Return the `num` largest eigenvalues of the Hessian of the mean loss, largest first.

    Lanczos (1950) with full orthogonalization, once for each eigenvalue, beside the eigenvectors that were found, so
    that multiple eigenvalues are all seen. Memory: a copy of the model for each product of one eigenvalue.

    Args:
        task: What to look at.
        generator: On the model's device: where it starts is random.
        num: How many.
        tolerance: Norm of the residual H x - a x, which bounds the distance to an eigenvalue, as a part of the largest.
        max_products: For each eigenvalue.
        by: How to multiply; see `hessian`.

    Raises:
        ValueError: There are fewer eigenvalues, or none is asked for.
        RuntimeError: One was not found within max_products.

    """
    numel = sum(p.numel() for p in task.parameters.values())
    if not 1 <= num <= numel:
        raise ValueError(f"{num} eigenvalues were asked for, of a Hessian that has {numel}; ask for 1 to {numel}.")
    values: list[float] = []
    vectors: list[Tensor] = []
    shapes = [p.shape for p in task.parameters.values()]
    with hessian(task, generator, by) as product:

        def times(x: Tensor) -> Tensor:
            pieces = x.split([shape.numel() for shape in shapes])
            found = product([piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)])
            return torch.cat([piece.flatten() for piece in found])

        for _ in range(num):
            start = torch.cat([x.flatten() for x in rademacher(task, generator)])
            scale = abs(values[0]) if values else 0.0
            value, vector = _lanczos(times, start, vectors, tolerance, scale, max_products)
            values.append(value)
            vectors.append(vector)
    return sorted(values, reverse=True)


def _lanczos(
    times: Callable[[Tensor], Tensor],
    start: Tensor,
    beside: Sequence[Tensor],
    tolerance: float,
    scale: float,
    max_products: int,
) -> tuple[float, Tensor]:
    """Return the largest eigenvalue, and its vector (numel,), in the space orthogonal to others."""
    x = _orthogonalize(start, beside)
    basis: list[Tensor] = []
    diagonal: list[float] = []
    off: list[float] = []
    room = start.numel() - len(beside)
    value = residual = math.inf
    for _ in range(min(max_products, room)):
        basis.append(x / x.norm())
        image = times(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        x = _orthogonalize(image, [*beside, *basis])
        off.append(float(x.norm()))
        side = torch.tensor(off[:-1], dtype=torch.float64)
        matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(side, 1) + torch.diag(side, -1)
        found, weights = torch.linalg.eigh(matrix)
        value, largest = float(found[-1]), max(scale, float(found.abs().max()))
        residual = off[-1] * abs(float(weights[-1, -1]))
        if residual <= tolerance * largest or off[-1] <= _NOTHING * largest or len(basis) == room:
            vector = torch.stack(basis, 1) @ weights[:, -1].to(basis[0])
            return value, vector / vector.norm()
    raise RuntimeError(
        f"after {max_products} products the largest eigenvalue, {value:.4g}, is known to {residual:.2g} only; allow "
        f"more than max_products={max_products}, or a larger tolerance than {tolerance:g}."
    )


def _orthogonalize(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        for other in others:
            x = x - (x @ other) * other
    return x


def _student_t(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile, by Hill's expansion around the normal one: to 1 % from 4 degrees on."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (k + 1) for k, term in enumerate(terms))
