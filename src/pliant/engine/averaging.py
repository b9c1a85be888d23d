"""Averages of ranks that differ: weights, optimizer states, whole models."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small
from pliant.engine.fusing import fuse_tensors
from pliant.engine.initial_sync import broadcast_optimizer, broadcast_tensors

__all__ = ["average_run", "average_states", "average_weights", "consolidated_state"]


@torch.no_grad()
def average_weights(tensors: Iterable[Tensor], comm: Comm) -> None:
    """Replace each tensor by its mean over ranks, computed in float32, in place. Collective; the same on all ranks.

    Many tensors travel at once, which saves latency.
    """
    for fused in fuse_tensors(as_real(tensor) for tensor in tensors):
        mean = torch.cat([tensor.detach().to(torch.float32).reshape(-1) for tensor in fused])
        comm.all_reduce(mean).wait()
        mean.mul_(1 / comm.size)
        for tensor, part in zip(fused, mean.split([tensor.numel() for tensor in fused]), strict=True):
            tensor.copy_(part.view(tensor.shape))


@torch.no_grad()
def average_states(optimizer: Optimizer, parameters: Sequence[Tensor], comm: Comm) -> None:
    """Replace an optimizer's state of parameters by its mean over ranks, in place. Collective.

    Ranks with equal weights but different momenta differ again one step later. Where ranks hold different keys, or
    counted different steps, as at a free pace, all get rank 0's optimizer state instead.
    """
    if comm.size == 1 or not parameters:
        return
    device = parameters[0].device
    found = [(key, value) for p in parameters for key, value in sorted(optimizer.state.get(p, {}).items())]
    kinds = [(key, tuple(value.shape) if _is_array(value) else str(value)) for key, value in found]
    mine = torch.tensor([zlib.crc32(str(kinds).encode())], dtype=torch.int64, device=device)
    all_kinds = gather_small(comm, mine)
    if bool((all_kinds != all_kinds[0]).any()):
        broadcast_optimizer(optimizer, comm, device)
        return
    arrays = [value for _, value in found if _is_array(value)]
    average_weights([value for value in arrays if _has_mean(value)], comm)
    broadcast_tensors([value for value in arrays if not _has_mean(value)], comm)  # such as codes of momenta in 8 bits


def average_run(parameters: Sequence[Tensor], optimizer: Optimizer, comm: Comm) -> None:
    """Replace parameters and their optimizer state by means over ranks. Collective."""
    average_weights(parameters, comm)
    average_states(optimizer, parameters, comm)


def consolidated_state(
    module: nn.Module, comm: Comm, replicas: Comm, *, differ: bool, whole: bool
) -> dict[str, Tensor]:
    """Return a copy of the module's state: means where ranks differ, else, and for integers, rank 0's. Collective.

    Args:
        module: The module.
        comm: All ranks that train it.
        replicas: Those that hold the same shards as this one; all, if parameters are whole.
        differ: Whether they differ.
        whole: Whether what is divided is put together on every rank; else it stays so, as DTensors.

    """
    live = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    shards: dict[str, Any] = {name: value for name, value in live.items() if hasattr(value, "to_local")}
    parts = {name: value.to_local().detach().clone() for name, value in shards.items()}
    average_weights([part for part in parts.values() if differ and _has_mean(part)], replicas)
    found = {name: value.detach().clone() for name, value in live.items() if name not in shards}
    _make_equal(found.values(), comm, differ=differ)
    for name, like in shards.items():
        placed = like.device_mesh, like.placements
        made = type(like).from_local(parts[name], *placed, shape=like.shape, stride=like.stride())
        found[name] = made.full_tensor() if whole else made
    return {name: found[name] for name in live}


def _make_equal(tensors: Iterable[Tensor], comm: Comm, *, differ: bool) -> None:
    """Replace tensors by their means where ranks differ; else, and integers, by rank 0's."""
    held = list(tensors)
    average_weights([value for value in held if differ and _has_mean(value)], comm)
    broadcast_tensors([value for value in held if not (differ and _has_mean(value))], comm)


def _has_mean(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _is_array(value: object) -> bool:
    """Say whether a part of an optimizer's state is one number for each of many, and no counter."""
    return isinstance(value, Tensor) and value.dim() > 0
