"""The kernels on the device: equal to the C kernels to the bit, and as fast as the memory."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import torch
from checks import Check
from timing import copy_gb_s, median_s, numel_of
from triton_cases import (
    KINDS,
    ODD_ROWS,
    ROWS,
    Row,
    encode_differs,
    factors_of,
    mean_differs,
    topk_differs,
    values,
    vector,
)

from pliant.codecs.kernels import kernels_for, reference

__all__ = ["run"]

_PEERS = 3


def run(device: str) -> None:
    kernels = kernels_for(torch.empty(1, device=device)) if device == "cuda" else reference
    Check(name="kernels", figure=kernels.__name__.rsplit(".", 1)[-1], bound="triton on cuda").say()
    fused = hasattr(kernels, "minmax8_mean")
    for row, found in zip(ROWS + ODD_ROWS, _small_of_all(device), strict=True):
        _say(f"{row.label} equals C", found)
    _selection(kernels, device)
    _factors(kernels, device)
    numel = numel_of(device)
    yardstick = copy_gb_s(device)
    for row in ROWS:
        _say(f"{row.label} equals C, {numel} elements", _large(row, kernels, numel, device))
        _bandwidth(row, kernels, numel, yardstick, device, fused=fused)


def _say(name: str, differs: list[str]) -> None:
    figure = "equal" if not differs else "not equal: " + ", ".join(sorted(set(differs)))
    Check(name=name, figure=figure, bound="to the bit", passed=not differs).say()


def _small_of_all(device: str) -> list[list[str]]:
    """Return what differs for each row, in small vectors; on a GPU in several processes, since compiling takes long."""
    if device != "cuda":
        return [_small_of(row, device) for row in ROWS + ODD_ROWS]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)) // 2, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_small_of, ROWS + ODD_ROWS, repeat(device)))


def _small_of(row: Row, device: str) -> list[str]:
    kernels = kernels_for(torch.empty(1, device=device)) if device == "cuda" else reference
    fused = hasattr(kernels, "minmax8_mean")
    return [d for n in (1, 2049, 20_000) for d in _small(row, kernels, n, device, fused=fused)]


def _small(row: Row, kernels, numel: int, device: str, *, fused: bool) -> list[str]:
    found = []
    for kind in KINDS if numel < 20_000 else ("normal", "bad"):
        owed = vector("normal", numel, 2)
        found += [f"{d} of {kind}" for d in encode_differs(row, kernels, values(kind, numel, 1), owed, device)]
        if fused and kind != "bad":
            x = values(kind, numel, 1)
            found += [f"{d} of {kind}" for d in mean_differs(row, kernels, x, owed, _PEERS, device, feedback=True)]
    return found


def _large(row: Row, kernels, numel: int, device: str) -> list[str]:
    return encode_differs(row, kernels, torch.randn(numel - 3), torch.randn(numel - 3), device)


def _selection(kernels, device: str) -> None:
    numel = 1 << 20 if device == "cuda" else 20_000
    for stride in (1, 61):
        found = [
            d
            for kind in ("normal", "bad", "sparse")
            for d in topk_differs(kernels, values(kind, numel, 4), numel // 50, stride, device)
        ]
        _say(f"topk, stride {stride}, equals C", found)


def _factors(kernels, device: str) -> None:
    ps = factors_of([(4, 64), (4, 3000), (2, 50), (1, 5)], device)
    wanted = [p.cpu().double() for p in ps]
    kernels.orthogonalize(ps)
    reference.orthogonalize(wanted)
    worst = max(float((p.cpu().double() - w).abs().max()) for p, w in zip(ps, wanted, strict=True))
    Check(name="orthogonal factors, error", figure=f"{worst:.1e}", bound="1e-5", passed=worst < 1e-5).say()


def _bandwidth(row: Row, kernels, numel: int, yardstick: float, device: str, *, fused: bool) -> None:
    """Time encode with feedback, which reads x and residual and writes residual and payload, and the other kernels."""
    x, residual = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    nbytes = row.nbytes(numel)
    payloads = torch.zeros(_PEERS, -(-nbytes // 16) * 16, dtype=torch.uint8, device=device)
    payload = payloads[0, :nbytes]
    calls = {
        "encode + feedback": (12 * numel + nbytes, lambda: row.encode(kernels, x, residual, payload)),
        "decode + add": (8 * numel + nbytes, lambda: row.decode(kernels, payload, residual, add=True)),
    }
    if fused:
        calls["owner's step"] = (
            16 * numel + (_PEERS + 1) * nbytes,
            lambda: row.mean(kernels, x, residual, payloads, payload, feedback=True),
        )
    for name, (num_bytes, call) in calls.items():
        share = num_bytes / median_s(call, device) / 1e9 / yardstick
        held = share >= 0.8 if device == "cuda" else None
        figure = f"{share * yardstick:.0f} GB/s, {share:.2f} of a copy"
        Check(name=f"{row.label}: {name}", figure=figure, bound="0.80", passed=held).say()
