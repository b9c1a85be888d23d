"""Marks in time: taken by the thread on CPU, by the current stream on CUDA, so that nothing waits to take one."""

import time
from typing import Any

import torch

__all__ = ["DeviceTimer"]


class DeviceTimer:
    """Takes marks on a device, and says later how far apart they are."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:
        """Return a mark: seconds on CPU, an event of the current stream on CUDA."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device has come to every mark."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds from one mark to another; on CUDA after `settle`."""
        return end - start if isinstance(start, float) else start.elapsed_time(end) * 1e-3
