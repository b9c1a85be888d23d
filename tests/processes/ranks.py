"""Real processes as ranks on loopback."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def start(script: str, size: int, folder: Path) -> list[subprocess.Popen]:
    """Run a script once per rank with torchrun's environment; output goes to <folder>/<rank>.log."""
    (folder / "script.py").write_text(script)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(size):
        env = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "FOLDER": str(folder),
        }
        log = (folder / f"{rank}.log").open("w")
        command = [sys.executable, str(folder / "script.py")]
        processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    return processes


def await_all(ranks: list[subprocess.Popen], folder: Path, word: str, within_s: float = 60) -> None:
    """Wait until every rank has said a word, and fail if one ends before."""
    deadline = time.monotonic() + within_s
    while not all(word in said(folder, r) for r in range(len(ranks))):
        assert time.monotonic() < deadline, [said(folder, r) for r in range(len(ranks))]
        assert all(p.poll() is None for p in ranks), [said(folder, r) for r in range(len(ranks))]
        time.sleep(0.05)


def said(folder: Path, rank: int) -> str:
    return (folder / f"{rank}.log").read_text()
