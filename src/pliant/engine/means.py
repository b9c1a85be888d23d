"""One model out of ranks that differ."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pliant.comm.base import Comm

__all__ = ["average_weights", "mean_model"]


@torch.no_grad()
def average_weights(tensors: Iterable[Tensor], comm: Comm) -> None:
    """Replace each tensor by its mean over ranks, computed in float32, in place. Collective; the same on all ranks."""
    for tensor in tensors:
        mean = tensor.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        comm.all_reduce(mean).wait()
        tensor.copy_(mean.mul_(1 / comm.size))


def mean_model(module: nn.Module, comm: Comm, *, differ: bool) -> dict[str, Tensor]:
    """Return a copy of the module's state: means where ranks differ, else, and for integers, rank 0's. Collective."""
    state = {name: value.detach().clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for value in state.values():
        if differ and value.is_floating_point():
            average_weights([value], comm)
        else:
            flat = value.contiguous()
            comm.broadcast(flat, 0).wait()
            value.copy_(flat)
    return state
