"""The CPUs that ranks share, within machines and on emulated hosts."""

import hashlib
import os
import socket
from pathlib import Path

import torch

from pliant.comm import Comm
from pliant.comm.small_gather import gather_small

__all__ = ["count_cpus"]

_KEY_BYTES = 16
_MOST_CPUS = 1024


def count_cpus(comm: Comm) -> float:
    """Return how many CPUs all ranks have together, as `Topology.num_cpus` has it. Collective.

    A machine counts once, however many emulated hosts it holds; of a machine count those on which its ranks may run. If
    machines are not alike, the fullest decides, since all ranks wait for it.
    """
    mine = torch.zeros(_KEY_BYTES + _MOST_CPUS, dtype=torch.uint8)
    mine[:_KEY_BYTES] = torch.tensor(list(hashlib.sha256(_machine().encode()).digest()[:_KEY_BYTES]))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    mine[[_KEY_BYTES + cpu for cpu in allowed if cpu < _MOST_CPUS]] = 1
    machines: dict[bytes, list[torch.Tensor]] = {}
    for row in gather_small(comm, mine):
        machines.setdefault(bytes(row[:_KEY_BYTES].tolist()), []).append(row[_KEY_BYTES:])
    per_cpu = [len(rows) / max(1, int(torch.stack(rows).any(0).sum())) for rows in machines.values()]
    return comm.size / max(per_cpu)


def _machine() -> str:
    """Return what all processes of one running machine have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()
