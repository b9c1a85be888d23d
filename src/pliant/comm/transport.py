"""Choice of the transport of a model's tensors: the device's own backend, or Gloo from host memory."""

from collections.abc import Callable
from typing import Literal

import torch
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.accelerator import is_accelerator
from pliant.comm.base import Comm
from pliant.comm.by_device import ByDeviceComm
from pliant.comm.private_comm import comm_beside, new_comm, self_comm
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.staged import StagedComm
from pliant.comm.torch_private import backend_of

__all__ = ["Transport", "by_host", "comm_alone", "comm_by_host", "comm_for", "require_transport"]

Transport = Literal["auto", "host", "device"]
"""Way of an accelerator's tensors: through host memory over Gloo, by the device's own backend, or whichever fits."""


def require_transport(transport: Transport, group: ProcessGroup, device: torch.device) -> None:
    """Raise ValueError for a transport that a model on this device cannot have. No communication."""
    if transport not in ("auto", "host", "device"):
        raise ValueError(f"transport is {transport!r}, but must be 'auto', 'host' or 'device'.")
    if transport == "device" and not _has_own_backend(group, device):
        found = backend_of(group, device) or "no backend"
        raise ValueError(
            f"transport='device' asks for the own backend of {device}, but the process group has {found} for it; "
            "initialize it with one, such as backend='nccl' or 'cpu:gloo,cuda:nccl', or leave transport= out."
        )


def _has_own_backend(group: ProcessGroup, device: torch.device) -> bool:
    """Say whether a group moves this device's tensors by a backend that never brings them to the host, such as NCCL."""
    return is_accelerator(device) and backend_of(group, device) not in ("", "gloo")


def comm_for(
    group: ProcessGroup,
    timeout_s: float,
    start_timeout_s: float,
    *,
    device: torch.device,
    transport: Transport,
    on_one_host: Callable[[Comm], bool],
) -> tuple[Comm, ProcessGroupComm]:
    """Return a comm over new groups for a model on a device, and that of its host tensors. Collective over `group`.

    On an accelerator there is always a group of Gloo, through which control messages go. Tensors of the device go there
    too, from pinned memory (`StagedComm`), unless all ranks are on one host, or `transport` says otherwise: then they
    go through a second group, of the device's own backend.

    Args:
        group: Group with the ranks.
        timeout_s: Longest wait for one communication.
        start_timeout_s: The same for all ranks to come here.
        device: Device of the model.
        transport: Transport that was asked for.
        on_one_host: Says whether all ranks of a comm are on one host; collective.

    """
    if not is_accelerator(device):
        host = new_comm(group, timeout_s, start_timeout_s, device=device)
        return host, host
    host = new_comm(group, timeout_s, start_timeout_s, backend="gloo")
    own = _has_own_backend(group, device)
    if transport == "device" or (transport == "auto" and own and on_one_host(host)):
        return ByDeviceComm(comm_beside(host, group, device), host), host
    return by_host(host, device), host


def comm_by_host(group: ProcessGroup, timeout_s: float, device: torch.device) -> Comm:
    """Return a comm over a new group that carries tensors of a device by way of host memory. Collective."""
    backend = "gloo" if is_accelerator(device) else None
    return by_host(new_comm(group, timeout_s, backend=backend), device)


def comm_alone(device: torch.device) -> Comm:
    """Return a comm of one rank, which sends nothing, for tensors of a device."""
    return by_host(self_comm(), device)


def by_host(comm: Comm, device: torch.device) -> Comm:
    """Return a comm that carries tensors of a device over one that carries those of the host."""
    return StagedComm(comm) if is_accelerator(device) else comm
