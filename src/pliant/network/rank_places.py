"""Places of ranks: which of them are on one host, and whether they talk over Gloo."""

import hashlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pliant.comm import Comm, ProcessGroupComm, broadcast_text
from pliant.comm.small_gather import gather_small
from pliant.comm.torch_private import backend_of

__all__ = ["ask_hosts", "ranks_of_hosts", "require_gloo"]

_NAME_BYTES = 64


def require_gloo(comm: Comm) -> None:
    """Raise ValueError for a comm that does not carry host memory over Gloo: others hide when bytes have come."""
    if isinstance(comm, ProcessGroupComm) and (backend := backend_of(comm.group, torch.device("cpu"))) != "gloo":
        raise ValueError(
            f"the probe takes times over Gloo, from host memory, which goes over {backend or 'nothing'} in this comm; "
            "make one with "
            'torch.distributed.new_group(backend="gloo") and pliant.comm.new_comm.'
        )


def ask_hosts(comm: Comm, places: Sequence[Sequence[int]], connections: int, answer: Callable[[Comm], str]) -> str:
    """Return what one rank of each host finds out together with those of the others. Collective.

    Args:
        comm: All ranks.
        places: Ranks of each host; the first of each takes part.
        connections: Connections between each two of those that take part.
        answer: Returns it on rank 0, and is called on all that take part, with a comm whose rank k is of host k.

    Returns:
        The same on all ranks.

    """
    first = [ranks[0] for ranks in places]
    if first == list(range(comm.size)) and connections == comm.connections:
        return broadcast_text(answer(comm), comm)
    chosen, text = comm.split([first], connections), ""
    if chosen is not None:
        try:
            text = answer(chosen)
        finally:
            chosen.close()
    return broadcast_text(text, comm)


def ranks_of_hosts(
    comm: Comm, hosts: Sequence[Sequence[int]] | None, *, in_order: bool = True
) -> tuple[list[str], list[list[int]]]:
    """Return a name for each host, and its ranks. Collective.

    Args:
        comm: Ranks.
        hosts: Ranks of each host; None for those that see one network of one machine.
        in_order: Whether they have to follow each other, as in a topology.

    Raises:
        ValueError: They do not.

    """
    key = hashlib.sha256(_network_of_this_process().encode()).digest()[:16]
    mine = torch.zeros(16 + _NAME_BYTES, dtype=torch.uint8)
    name = socket.gethostname().encode()[:_NAME_BYTES]
    mine[: 16 + len(name)] = torch.tensor(list(key + name), dtype=torch.uint8)
    rows = [bytes(row) for row in gather_small(comm, mine).tolist()]
    places: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        places.setdefault(row[:16], []).append(rank)
    groups = list(places.values()) if hosts is None else [list(ranks) for ranks in hosts]
    if in_order and [rank for ranks in groups for rank in ranks] != list(range(comm.size)):
        raise ValueError(
            f"the hosts hold the ranks {groups}, but a topology counts ranks 0..{comm.size - 1} host by host; start "
            "the ranks of a host together, as torchrun does, or pass hosts= in that order."
        )
    names = [rows[ranks[0]][16:].rstrip(b"\0").decode(errors="replace") for ranks in groups]
    if len(set(names)) < len(names):  # such as emulated hosts, which are one machine
        names = [f"host{k}" for k in range(len(names))]
    return names, groups


def _network_of_this_process() -> str:
    """Return what processes have in common that see the same network of the same running machine, and only they."""
    signs = [socket.gethostname()]
    if (boot := Path("/proc/sys/kernel/random/boot_id")).exists():
        signs.append(boot.read_text().strip())
    if (namespace := Path("/proc/self/ns/net")).is_symlink():
        signs.append(str(namespace.readlink()))
    return " ".join(signs)
