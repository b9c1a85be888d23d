"""The ranks of one trial, the store they meet in, and the hosts they live on."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos.hosts import Disk, Hosts
from chaos.rank import SECRET_FILE, Start, StoreStart, be, host_store
from chaos.trials import TIMEOUT_S, Trial, steps_of, switches_of
from pliant.network.local_hosts import reserve_port
from pliant_bench.faults.processes import Processes

__all__ = ["POLL_S", "World", "context"]

POLL_S = 0.005
_START_S = 30.0
_STORE = -1

context = multiprocessing.get_context("forkserver")
# torch.optim's first step imports the compiler, and a checkpoint its own; both take longer than many a trial.
context.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "pliant_bench.harness.arms"]
)


class World(Processes):
    """One training. Used with `with`, after which none of its processes is left and all links are mended.

    Args:
        trial: What is trained where.
        hosts: If the trial is on hosts.
        disk: For checkpoints, if the trial fills it.
        saves: Folder of checkpoints.
        slack: What all times are multiplied by, for a machine that is busy.

    """

    def __init__(self, trial: Trial, hosts: Hosts | None, disk: Disk | None, saves: Path, slack: float) -> None:
        super().__init__(context.Process)
        self.trial, self.slack = trial, slack
        self.hosts = hosts if trial.where == "hosts" else None
        self.disk, self._saves = disk, saves
        self._address, self._port = "", 0
        secret = os.open(self.folder / SECRET_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(secret, os.urandom(32).hex().encode())
        os.close(secret)

    def begin(self, *, loads: bool = False) -> None:
        """Start the store and all ranks."""
        self.meet()
        for rank in range(self.trial.ranks):
            self.start(rank, loads=loads)

    def start(self, rank: int, *, loads: bool = False) -> None:
        """Start a rank, for the first time or again."""
        trial = self.trial
        told = Start(
            trial=trial,
            rank=rank,
            address=self._address,
            port=self._port,
            network_pid=self.hosts.pid(rank) if self.hosts is not None else 0,
            disk_pid=self.disk.pid if self.disk is not None else 0,
            saves=str(self._saves),
            folder=str(self.folder),
            steps=steps_of(trial),
            slack=self.slack,
            timeout_s=TIMEOUT_S * self.slack,
            plans=tuple(switches_of(trial)) if trial.attack == "switch" else (),
            loads=loads,
        )
        self.launch(rank, be, told)

    def await_line(self, ranks: Sequence[int], kind: str, times: int, within_s: float) -> bool:
        """Wait until ranks have said something so often; False if one has ended, or the time is up."""

        def have() -> bool:
            return all(sum(line["kind"] == kind for line in self.diary(rank)) >= times for rank in ranks)

        return self._await(have, ranks, within_s)

    def await_begun(self, within_s: float) -> bool:
        """Wait until all train."""
        return self.await_line(range(self.trial.ranks), "begun", 1, within_s)

    def restart(self, rank: int) -> None:
        """Start a killed rank again."""
        self.wait([rank], _START_S)  # reaped: a rank is one process
        self.start(rank)

    def stop(self, rank: int) -> None:
        """Stop a rank, which breaks no connection."""
        self.signal(rank, signal.SIGSTOP)

    def go_on(self, rank: int) -> None:
        """Let a stopped rank go on."""
        self.signal(rank, signal.SIGCONT)

    def kill(self, rank: int) -> None:
        """Kill a rank."""
        self.signal(rank, signal.SIGKILL)

    def __enter__(self) -> "World":
        return self

    def meet(self) -> int:
        """Start the store, or leave it to rank 0; return its port."""
        if self.trial.rank_hosts_store:
            self._address = self.hosts.address(0) if self.hosts is not None else "127.0.0.1"
            held = self.held.enter_context(reserve_port())  # in a namespace of its own any port is free
            self._port = int(held.getsockname()[1])
            return self._port
        self._address = self.hosts.switch if self.hosts is not None else "127.0.0.1"
        pid = self.hosts.switch_pid if self.hosts is not None else 0
        self.launch(_STORE, host_store, StoreStart(address=self._address, network_pid=pid, folder=str(self.folder)))
        if not self.await_line([_STORE], "hosts", 1, _START_S * self.slack):
            raise RuntimeError(f"no store came up at {self._address} within {_START_S * self.slack:g} s.")
        self._port = int(self.diary(_STORE)[0]["port"])
        return self._port

    def _await(self, have: Callable[[], bool], ranks: Sequence[int], within_s: float) -> bool:
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if have():
                return True
            if any(code is not None for code in self.wait(ranks, 0.0).values()):
                return have()
            time.sleep(POLL_S)
        return False
