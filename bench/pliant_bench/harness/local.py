"""Ranks as plain processes on loopback: the fast network to compare with, and a machine without namespaces."""

import os
import subprocess
from collections.abc import Callable, Sequence

from pliant.network.emulate import RankResult, run_ranks
from pliant.network.namespaces import die_with_parent
from pliant.network.store_host import reserve_port

__all__ = ["LocalHosts"]


class LocalHosts:
    """Runs a command as ranks of this machine; the same face as an emulated cluster."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def run(self, argv: Sequence[str], *, on_line: Callable[[int, str], None]) -> list[RankResult]:
        """Run the command once per rank and wait; when one fails, the others are ended."""
        with reserve_port() as held:
            port = str(held.getsockname()[1])
            processes = [self._popen(rank, argv, port) for rank in range(self._num_ranks)]
            return run_ranks(processes, ["localhost"] * self._num_ranks, on_line, timeout_s=0.0)

    def _popen(self, rank: int, argv: Sequence[str], port: str) -> "subprocess.Popen[str]":
        torchrun = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(self._num_ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self._num_ranks),
            "GROUP_RANK": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **torchrun},
            preexec_fn=die_with_parent(os.getpid()),
            process_group=0,  # see Note [one session]
        )
