"""Groups of tensors that travel as one message, since each message takes round trips."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

__all__ = ["fuse_tensors"]

_FUSED_NUMEL = 1 << 24


def fuse_tensors(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of tensors of one type on one device that are not too large to copy, alike on all ranks.

    A tensor that is larger has a group of its own.
    """
    fused: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        together = fused.setdefault((tensor.dtype, tensor.device), [])
        if together and sum(t.numel() for t in together) + tensor.numel() > _FUSED_NUMEL:
            yield list(together)
            together.clear()
        together.append(tensor)
    yield from fused.values()
