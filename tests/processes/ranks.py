"""Real processes as ranks on loopback."""

import os
import socket
import subprocess
import sys
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


def said(folder: Path, rank: int) -> str:
    return (folder / f"{rank}.log").read_text()
