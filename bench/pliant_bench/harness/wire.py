"""Bytes: what left the host, what a formula says, and what the busiest of all ranks had."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from pliant_bench.harness.arms import POST_LOCAL_PERIOD, POWERSGD_RANK, Arm

__all__ = ["busiest", "formula_bytes", "interface_bytes"]


def interface_bytes() -> int:
    """Return the bytes that have left this host by its first interface but loopback, headers and all."""
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            return int(counters.split()[8])
    return 0


def busiest(values: list[float]) -> list[float]:
    """Return the element-wise maximum over all ranks. Collective."""
    largest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.tolist()


def formula_bytes(arm: Arm, warm: float = 0.0) -> float:
    """Return what a rank sends in a step of an arm that nobody counts: the sizes in a ring, 2 (n - 1) / n of each.

    `warm` is the part of all steps that belongs to the warm-up, for those that have one.
    """
    shapes = [tuple(p.shape) for p in arm.model.parameters() if p.requires_grad]
    size = dist.get_world_size()
    return 2 * (size - 1) / size * _averaged_bytes(arm.name, arm.model, shapes, warm)


def _averaged_bytes(name: str, model: nn.Module, shapes: list[tuple[int, ...]], warm: float) -> float:
    if name == "compute":
        return 0.0
    if name == "ddp-powersgd":
        return 4.0 * sum(_powersgd_numel(shape) for shape in shapes)
    numel = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if name == "ddp-postlocal":
        return numel * 4.0 * (warm + (1 - warm) / POST_LOCAL_PERIOD)
    return numel * (2.0 if name == "ddp-bf16" else 4.0)


def _powersgd_numel(shape: tuple[int, ...]) -> int:
    """Return r (n + m) for an n x m matrix, or n m where torch's hook finds that this is not less than half of it."""
    rows = shape[0] if shape else 1
    columns = int(torch.Size(shape[1:]).numel())
    rank = min(rows, columns, POWERSGD_RANK)
    factors = rank * (rows + columns)
    return factors if len(shape) > 1 and 2 * factors < rows * columns else rows * columns
