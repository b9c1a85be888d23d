"""Comms of a run: over which transport, and over how many connections between each two ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.agreement import require_same
from pliant.comm.base import Comm
from pliant.comm.by_device import ByDeviceComm
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.striping import MAX_CONNECTIONS, ConnectionChoice
from pliant.comm.torch_private import backend_of
from pliant.comm.transport import Transport, comm_for
from pliant.engine.launcher_env import are_on_one_host
from pliant.network.connection_choice import choose_connections
from pliant.spec import Topology, load

__all__ = ["Connections", "choice_of", "connect"]

Connections = int | Literal["auto"] | str | Path | Topology
"""Connections between each two ranks: a number, as many as a topology has, or as are measured to pay ("auto")."""


def choice_of(connections: Connections | None) -> ConnectionChoice | None:
    """Return the number of connections that was asked for, or None for one that is to be measured. No communication.

    Raises:
        ValueError: It is no number from 1 to 32, or the file has no topology.

    """
    if connections == "auto":
        return None
    if connections is None:
        return ConnectionChoice()
    if isinstance(connections, int):
        found = ConnectionChoice(connections=connections, why=f"relax() was given connections={connections}")
    else:
        topology = connections if isinstance(connections, Topology) else _read(connections)
        found = ConnectionChoice(connections=topology.connections, why=f"the topology says so: {topology.provenance}")
    if not 1 <= found.connections <= MAX_CONNECTIONS:
        raise ValueError(
            f"{found.connections} connections between two ranks are asked for; give at least 1 and at most "
            f"{MAX_CONNECTIONS}, or 'auto'."
        )
    return found


def _read(path: str | Path) -> Topology:
    try:
        return load(Topology, path)
    except OSError as error:
        raise ValueError(
            f"connections={str(path)!r} names no topology ({error}); give the file of `pliant probe --out`, a number, "
            "or 'auto'."
        ) from None


def connect(
    group: ProcessGroup,
    device: torch.device,
    transport: Transport,
    hosts: Sequence[Sequence[int]] | None,
    timeouts_s: tuple[float, float],
    asked: ConnectionChoice | None,
) -> tuple[Comm, ProcessGroupComm, ConnectionChoice]:
    """Return a comm for a model on a device, that of its host tensors, and the connections it has. Collective.

    Args:
        group: Group with the ranks.
        device: Device of the model.
        transport: Transport that was asked for.
        hosts: Ranks of each host; torchrun's placement, or the machines' names, if None.
        timeouts_s: Longest wait for one communication, in training and during the start.
        asked: Number of connections; None to measure it.

    Raises:
        ValueError: Ranks are on different kinds of device or ask for different numbers, or the transport has one.

    """

    def on_one_host(comm: Comm) -> bool:
        return are_on_one_host(comm, hosts)

    comm, host = comm_for(group, *timeouts_s, device=device, transport=transport, on_one_host=on_one_host)
    try:
        cure = "train on CPUs alone, or on one kind of accelerator"
        require_same(host, "the kind of device", device.type, cure=cure)
        require_same(host, "connections=", "auto" if asked is None else asked.connections)
        choice = _checked(comm, host, asked) or choose_connections(host, hosts=hosts)
        if choice.connections > 1:
            host.reconnect(choice.connections)
    except BaseException:
        comm.close()
        raise
    return comm, host, choice


def _checked(comm: Comm, host: ProcessGroupComm, asked: ConnectionChoice | None) -> ConnectionChoice | None:
    """Return the choice if it is made: as asked for, or one where the transport cannot have more."""
    backend = backend_of(host.group, torch.device("cpu"))
    own = "the device's own backend" if isinstance(comm, ByDeviceComm) else "" if backend == "gloo" else backend
    if not own:
        return asked
    if asked is not None and asked.connections > 1:
        raise ValueError(
            f"{asked.connections} connections between two ranks are asked for, which Gloo can have, but tensors of "
            f"this model go by {own}; set transport='host', or leave connections= out."
        )
    return asked or ConnectionChoice(why=f"tensors go by {own}, which has connections of its own")
