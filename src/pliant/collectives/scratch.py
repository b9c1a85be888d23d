"""Memory that tasks of one thread use one after another, so that the largest of them is paid once."""

import math

import torch
from torch import Tensor

__all__ = ["Scratch"]


class Scratch:
    """Buffers by name; each grows to the largest that was asked for, and nothing is kept in it from task to task.

    Args:
        device: Where the buffers lie.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor whose values are undefined; it is overwritten by who asks next for the name."""
        num_bytes = math.prod(shape) * dtype.itemsize
        held = self._held.get(name)
        if held is None or held.numel() < num_bytes:
            held = self._held[name] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return held[:num_bytes].view(dtype).view(shape)

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return sum(held.numel() for held in self._held.values())
