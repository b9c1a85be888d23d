"""One model out of ranks that differ."""

import zlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.comm.base import Comm
from pliant.engine.initial_sync import broadcast_optimizer

__all__ = ["average_states", "average_weights", "average_run", "consolidated_state"]

_FUSED_NUMEL = 1 << 24


@torch.no_grad()
def average_weights(tensors: Iterable[Tensor], comm: Comm) -> None:
    """Replace each tensor by its mean over ranks, computed in float32, in place. Collective; the same on all ranks.

    Many tensors travel at once, since each exchange takes as long as messages are under way.
    """
    for fused in _fuse_tensors(as_real(tensor) for tensor in tensors):
        mean = torch.cat([tensor.detach().to(torch.float32).reshape(-1) for tensor in fused])
        comm.all_reduce(mean).wait()
        mean.mul_(1 / comm.size)
        for tensor, part in zip(fused, mean.split([tensor.numel() for tensor in fused]), strict=True):
            tensor.copy_(part.view(tensor.shape))


@torch.no_grad()
def average_states(optimizer: Optimizer, parameters: Sequence[Tensor], comm: Comm) -> None:
    """Replace what an optimizer has gathered for parameters by its mean over ranks, in place. Collective.

    Ranks whose weights are equal, but not their momenta, are apart again one step later. Where ranks have gathered
    different things, or counted different steps, as at a free pace, all get rank 0's optimizer state instead.
    """
    if comm.size == 1 or not parameters:
        return
    device = parameters[0].device
    found = [(key, value) for p in parameters for key, value in sorted(optimizer.state.get(p, {}).items())]
    kinds = [(key, tuple(value.shape) if _is_array(value) else str(value)) for key, value in found]
    mine = torch.tensor([zlib.crc32(str(kinds).encode())], dtype=torch.int64, device=device)
    all_kinds = torch.empty(comm.size, dtype=torch.int64, device=device)
    comm.all_gather(all_kinds, mine).wait()
    if bool((all_kinds != all_kinds[0]).any()):
        broadcast_optimizer(optimizer, comm, device)
        return
    arrays = [value for _, value in found if _is_array(value)]
    average_weights([value for value in arrays if _has_mean(value)], comm)
    for value in arrays:
        if not _has_mean(value):
            comm.broadcast(value, 0).wait()  # such as momenta in 8 bits, whose codes have no mean


def average_run(parameters: Sequence[Tensor], optimizer: Optimizer, comm: Comm) -> None:
    """Let ranks that were apart go on as one: means of parameters, and of what the optimizer has gathered for them."""
    average_weights(parameters, comm)
    average_states(optimizer, parameters, comm)


def consolidated_state(module: nn.Module, comm: Comm, *, differ: bool) -> dict[str, Tensor]:
    """Return a copy of the module's state: means where ranks differ, else, and for integers, rank 0's. Collective."""
    state = {name: value.detach().clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    means = [value for value in state.values() if differ and _has_mean(value)]
    average_weights(means, comm)
    for value in state.values():
        if not (differ and _has_mean(value)):
            flat = value.contiguous()
            comm.broadcast(flat, 0).wait()
            value.copy_(flat)
    return state


def _has_mean(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _fuse_tensors(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors in order, together as long as they are not too much to copy."""
    together: list[Tensor] = []
    for tensor in tensors:
        if together and sum(t.numel() for t in together) + tensor.numel() > _FUSED_NUMEL:
            yield together
            together = []
        together.append(tensor)
    if together:
        yield together


def _is_array(value: object) -> bool:
    """Say whether a part of an optimizer's state is one number for each of many, and no counter."""
    return isinstance(value, Tensor) and value.dim() > 0
