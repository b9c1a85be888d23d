"""Marks in time: taken by the thread on CPU, by a stream on an accelerator, so that nothing waits to take one."""

import time
from typing import Any

import torch

from pliant.accelerator import is_accelerator, mark, synchronize

__all__ = ["DeviceTimer"]


class DeviceTimer:
    """Takes time marks on a device, and returns the seconds between two of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:
        """Return a mark: seconds on CPU, an event of the device's current stream on an accelerator."""
        return mark(self._device) if is_accelerator(self._device) else time.perf_counter()

    def settle(self) -> None:
        """Wait until the device has come to every mark."""
        synchronize(self._device)

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds from one mark to another; on an accelerator after `settle`."""
        return end - start if isinstance(start, float) else start.elapsed_time(end) * 1e-3
