"""Members of a new epoch become alike; who comes takes nothing that the first of them has not signed for."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.comm.base import Comm
from pliant.comm.elastic import ElasticGroup
from pliant.engine.initial_sync import broadcast_data, broadcast_tensors

__all__ = ["digest_of", "send_first_state", "average_members"]


def average_members(
    module: nn.Module, optimizer: Optimizer, comm: Comm, group: ElasticGroup, device: torch.device
) -> None:
    """Give all members the mean of what those hold that have a state, and those that come the first one's rest.

    Weights and floating-point buffers become the mean; frozen and other tensors, and of newcomers the optimizer's
    state, are those of the first member. Until a newcomer has found the digest of all that in what the first member
    has signed, its own tensors stay as they were.

    Raises:
        CommError: A member is lost, or what came is not what was signed.

    """
    members = group.epoch.members
    num_sound = sum(member.sound for member in members)
    sound = members[comm.rank].sound
    apart, alike = _tensors_of(module)
    if num_sound == len(members):
        for tensor in apart:
            tensor.detach().copy_(_mean_of_sound(tensor, comm, num_sound, sound=True))
        return
    means = [_mean_of_sound(tensor, comm, num_sound, sound=sound) for tensor in apart] if num_sound else []
    sent = alike if num_sound else [*apart, *alike]
    copies = [tensor.detach().clone() for tensor in sent]
    broadcast_tensors(copies, comm)
    state = broadcast_data(optimizer.state_dict(), 0, comm, device)
    _require_signed("weights and optimizer state", [*means, *copies], state, comm, group)
    for tensor, value in zip([*(apart if num_sound else ()), *sent], [*means, *copies], strict=True):
        tensor.detach().copy_(value)
    if comm.rank != 0 and not sound:
        optimizer.load_state_dict(state)


def send_first_state(tensors: Sequence[Tensor], comm: Comm, group: ElasticGroup) -> None:
    """Give all members the first one's values, in place, once those that come have found them signed for."""
    if all(member.sound for member in group.epoch.members):
        broadcast_tensors(tensors, comm)
        return
    copies = [tensor.detach().clone() for tensor in tensors]
    broadcast_tensors(copies, comm)
    _require_signed("outer state", copies, None, comm, group)
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.detach().copy_(copy)


def digest_of(tensors: Sequence[Tensor], data: Any = None) -> str:
    """Return SHA-256 of the dtypes, shapes and bytes of tensors, and of nested plain data that may hold tensors."""
    found = list(tensors)
    described = json.dumps(_describe(data, found), sort_keys=True)
    digest = hashlib.sha256(described.encode())
    for tensor in found:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,))  # a single one may be strided
            digest.update(memoryview(flat.view(torch.uint8).numpy()))  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()


def _require_signed(part: str, tensors: Sequence[Tensor], data: Any, comm: Comm, group: ElasticGroup) -> None:
    digest = digest_of(tensors, data) if comm.rank == 0 or not group.epoch.members[comm.rank].sound else ""
    if comm.rank == 0:
        group.vouch(part, digest)
    elif digest:
        group.require_vouched(part, digest)


def _describe(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return "tensor"
    if isinstance(value, dict):
        return [[repr(key), _describe(each, tensors)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(_describe(each, tensors) for each in value)]
    return repr(value)


def _tensors_of(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return what ranks have apart, and becomes a mean, and what they have alike: frozen, or whole numbers.

    Complex ones as pairs of real numbers, since those are what is added up and sent.
    """
    everything = [*module.parameters(), *module.buffers()]
    trained = [t for t in everything if t.requires_grad or not isinstance(t, nn.Parameter)]
    apart = [t for t in trained if t.is_floating_point() or t.is_complex()]
    ids = {id(tensor) for tensor in apart}
    return [*map(as_real, apart)], [as_real(tensor) for tensor in everything if id(tensor) not in ids]


def _mean_of_sound(tensor: Tensor, comm: Comm, num_sound: int, *, sound: bool) -> Tensor:
    """Return a tensor's mean over the ranks that hold a state, of its dtype."""
    mean = tensor.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    if not sound:
        mean.zero_()
    comm.all_reduce(mean).wait()
    return mean.mul_(1 / num_sound).to(tensor.dtype)
