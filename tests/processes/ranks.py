"""Real processes as ranks on loopback.

`start` runs a script as a user does, in an interpreter of its own, which begins and ends like any other. `fork` runs
it in a copy of a process that has imported torch already: so it begins at once, and nothing is said about how it ends.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pliant.network.store_host import reserve_port
from waiting import until

_held: list[socket.socket] = []
"""Ports of this process's stores: ranks come back to them."""

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(
    [
        *("torch", "torch.optim", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"),
        *("torch.distributed.tensor.parallel", "pliant.entry", "pliant.engine.elastic", "pliant.recsys"),
    ]
)


class Rank(Protocol):
    """A process."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def send_signal(self, sign: int) -> None: ...
    def kill(self) -> None: ...


def _environment(size: int, folder: Path) -> dict[str, str]:
    _held.append(reserve_port())
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_held[-1].getsockname()[1]),
        "WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],  # of this test, and not of the one that started the server
        "PYTHONUNBUFFERED": "1",
        "FOLDER": str(folder),
    }


def start(script: str, size: int, folder: Path) -> list[subprocess.Popen]:
    """Run a script once per rank with torchrun's environment; output goes to <folder>/<rank>.log."""
    (folder / "script.py").write_text(script)
    environment = {**os.environ, **_environment(size, folder)}
    processes = []
    for rank in range(size):
        log = (folder / f"{rank}.log").open("w")
        command = [sys.executable, str(folder / "script.py")]
        env = {**environment, "RANK": str(rank)}
        processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    return processes


class _Forked:
    """A process of the fork server, with the methods of `subprocess.Popen`."""

    def __init__(self, *arguments) -> None:
        self._process = _forkserver.Process(target=_be, args=arguments)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked rank", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, sign: int) -> None:
        os.kill(self._process.pid, sign)

    def kill(self) -> None:
        if self._process.exitcode is None:
            self.send_signal(signal.SIGKILL)


def fork(script: str, size: int, folder: Path) -> list[_Forked]:
    """Run a script once per rank, as `start` does, in copies of a process that has imported torch."""
    environment = _environment(size, folder)
    return [_Forked(script, {**environment, "RANK": str(rank)}, str(folder / f"{rank}.log")) for rank in range(size)]


def _be(script: str, environment: dict[str, str], log: str) -> None:
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(to, 1), os.dup2(to, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(environment)
    exec(compile(script, "script.py", "exec"), {"__name__": "__main__"})


def await_all(ranks: Sequence[Rank], folder: Path, word: str) -> None:
    """Wait until every rank has said a word, and fail if one ends before."""

    def words() -> list[str]:
        return [said(folder, r) for r in range(len(ranks))]

    until(lambda: all(word in text for text in words()) or any(p.poll() is not None for p in ranks), words)
    assert all(word in text for text in words()), words()


def said(folder: Path, rank: int) -> str:
    log = folder / f"{rank}.log"
    return log.read_text() if log.exists() else ""
