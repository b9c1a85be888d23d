"""Buffers that tasks of one thread use one after another, so that only the largest task is paid for."""

import math

import torch
from torch import Tensor

__all__ = ["Scratch"]


class Scratch:
    """Buffers by name, each as large as the largest request; nothing is kept in them from task to task.

    Args:
        device: Device of the buffers.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor with undefined values; the next call with the same name overwrites it."""
        num_bytes = math.prod(shape) * dtype.itemsize
        held = self._held.get(name)
        if held is None or held.numel() < num_bytes:
            held = self._held[name] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return held[:num_bytes].view(dtype).view(shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(held.numel() for held in self._held.values())
