"""Environment variables of torchrun, and of the user's cache folder: the only place that reads them."""

import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import torch

from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small

__all__ = ["are_on_one_host", "cache_folder", "hosts_from_torchrun", "run_from_torchrun", "size_from_torchrun"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def hosts_from_torchrun(comm: Comm, device: torch.device) -> list[list[int]] | None:
    """Return the ranks of each host as torchrun placed them, or None where torchrun did not start this process.

    Collective: every rank tells the others its GROUP_RANK.
    """
    mine = torch.tensor([int(os.environ.get("GROUP_RANK", "-1"))], dtype=torch.int64, device=device)  # (1,)
    groups = gather_small(comm, mine).flatten()
    if int(groups.min()) < 0:
        return None
    hosts: dict[int, list[int]] = {}
    for rank, group in enumerate(groups.tolist()):
        hosts.setdefault(group, []).append(rank)
    return list(hosts.values())


def are_on_one_host(comm: Comm, hosts: Sequence[Sequence[int]] | None) -> bool:
    """Say whether all ranks are on one host: as told, as torchrun placed them, or by the names of their machines.

    Collective, with tensors of the host.
    """
    hosts = hosts if hosts is not None else hosts_from_torchrun(comm, torch.device("cpu"))
    if hosts is not None:
        return len(hosts) == 1
    name = socket.gethostname() + (_BOOT.read_text() if _BOOT.exists() else "")
    mine = torch.tensor([int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")])
    names = gather_small(comm, mine)
    return bool((names == names[0]).all())


def run_from_torchrun() -> str:
    """Return torchrun's name of a run, the same on all ranks, also those that join later; "" without it."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def size_from_torchrun() -> int:
    """Return the number of ranks that torchrun, or who sets the same environment, has started; 0 without it."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ) else 0


def cache_folder() -> Path | None:
    """Return the user's folder for what Pliant keeps between runs; None for a user without a home."""
    if kept := os.environ.get("XDG_CACHE_HOME", ""):
        return Path(kept) / "pliant"
    try:
        return Path.home() / ".cache" / "pliant"
    except RuntimeError:
        return None
