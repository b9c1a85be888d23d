"""Accelerators, of any maker: streams, events, generators and pinned memory, by way of `torch.accelerator` alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "current_stream",
    "device_names",
    "finish_copies",
    "generator_state",
    "is_accelerator",
    "mark",
    "new_stream",
    "pinned",
    "set_generator_state",
    "synchronize",
    "used_here",
]

_HIGH = -1
"""Priority of a stream whose kernels go before those of the backward pass."""


def is_accelerator(device: torch.device) -> bool:
    """Whether a device has memory and streams of its own."""
    return device.type not in ("cpu", "meta")


def device_names() -> list[str]:
    """Return the name of each accelerator that this process sees, in the order of their numbers."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return []
    module: Any = torch.get_device_module(device)
    name_of: Any = getattr(module, "get_device_name", lambda _: device.type)
    return [str(name_of(k)) for k in range(torch.accelerator.device_count())]


def new_stream(device: torch.device) -> torch.Stream | None:
    """Return a new stream of this device, which goes before others; None on a CPU."""
    return torch.Stream(device=device, priority=_HIGH) if is_accelerator(device) else None


def current_stream(device: torch.device) -> torch.Stream:
    """Return the stream on which this thread now launches work on this device, which need not be the current one."""
    return torch.accelerator.current_stream(device)


def mark(device: torch.device) -> torch.Event:
    """Return an event, with its time, of the stream on which this thread now launches work on this device."""
    event = torch.Event(device, enable_timing=True)
    event.record(current_stream(device))
    return event


def used_here(*tensors: Tensor) -> None:
    """Let nobody have the memory of tensors of other streams before this thread's stream has done with them.

    On a CPU there is nothing to do.
    """
    for x in (each for each in tensors if is_accelerator(each.device)):
        x.record_stream(current_stream(x.device))


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all that was launched; on a CPU there is nothing to wait for."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def finish_copies(device: torch.device) -> None:
    """Wait for what this thread has launched on a device so far, such as copies to the host; nothing on a CPU."""
    if is_accelerator(device):
        current_stream(device).record_event().synchronize()


def pinned(shape: Sequence[int] | int, dtype: torch.dtype, beside: torch.device) -> Tensor:
    """Return a new buffer in host memory, from and to which a device copies by itself; values are undefined."""
    return torch.empty(shape, dtype=dtype, pin_memory=is_accelerator(beside))


def generator_state(device: torch.device) -> Tensor | None:
    """Return the state of a device's global random generator, uint8; None for a CPU, which has torch's own."""
    if not is_accelerator(device):
        return None
    module: Any = torch.get_device_module(device)
    return module.get_rng_state(device)


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Let a device's global random generator go on from a state, uint8."""
    module: Any = torch.get_device_module(device)
    module.set_rng_state(state.cpu(), device)
