"""Processes of a world on this machine: started together, ended together, and what they complain of kept."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pliant.network.store_host import reserve_port

__all__ = ["shared_device", "started"]


def started(
    script: Path, arguments: Sequence[str], num_ranks: int, limit_s: float, environment: Mapping[str, str]
) -> str:
    """Run a script as each rank of a world over the loopback interface; return why it has not ended well, or ""."""
    with reserve_port() as held, tempfile.TemporaryDirectory() as folder:
        port = str(held.getsockname()[1])
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": "0"}
        world |= {"GLOO_SOCKET_IFNAME": "lo", **environment}
        logs = [Path(folder) / f"{rank}.log" for rank in range(num_ranks)]
        ranks = []
        for rank, log in enumerate(logs):
            with log.open("w") as stderr:
                command = [sys.executable, str(script), *arguments]
                ranks.append(subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}, stderr=stderr))
        end_s, ended = time.monotonic() + limit_s, [None] * num_ranks
        try:
            while None in ended and not any(ended) and time.monotonic() < end_s:
                time.sleep(0.1)
                ended = [rank.poll() for rank in ranks]
            time.sleep(1 if any(ended) else 0)  # for the others to say how they met that
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            said = [log.read_text() for log in logs]
            print(*said, sep="\n", file=sys.stderr)
    if any(ended):
        last = {rank: " ".join(said[rank].strip().splitlines()[-1:]) for rank in range(num_ranks) if ended[rank]}
        return "; ".join(f"rank {rank}: {line}" for rank, line in last.items())
    return f"it did not end within {limit_s:.0f} s" if None in ended else ""


@contextmanager
def shared_device() -> Iterator[dict[str, str]]:
    """Let the processes of a world compute on one GPU at the same time, by NVIDIA's MPS; yield their environment.

    Without it, the GPU gives each process a slice of time after the other, and whoever waits for a copy of some
    microseconds waits for the slices of all others. Where there is no MPS, the environment is empty.

    By MPS a process has two work queues, where it has eight alone: two streams of a process that share one wait for
    each other, so that an exchange waits for all of backward that was launched before it. So each gets its eight here.
    """
    program = shutil.which("nvidia-cuda-mps-control", path=os.environ["PATH"] + ":/usr/local/nvidia/bin")
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | places
        if program is None or subprocess.run([program, "-d"], env=environment, check=False).returncode:
            yield {}
            return
        try:
            yield places | {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
        finally:
            subprocess.run([program], input="quit\n", text=True, env=environment, check=False, timeout=30)
