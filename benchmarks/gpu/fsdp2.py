"""FSDP2 on the one device, with one rank and with four over Gloo: an exact plan beside the whole model, and coded ones.

NCCL refuses two ranks on one GPU, so there is no plain FSDP2 of four ranks to compare with: the same model, whole, on
the same device, takes the batches of all ranks at once.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import Check

__all__ = ["run"]

_WORKER = Path(__file__).with_name("fsdp2_rank.py")
_LIMIT_S = 60


def run(device: str) -> None:
    for num_ranks in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            said = _started(device, out, num_ranks)
            name = f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"
            if said:
                Check(name=name, figure=said[-300:], bound="no error", passed=False).say()
            if out.exists():
                _say(name, json.loads(out.read_text()))


def _say(name: str, found: dict[str, float]) -> None:
    """Say what rank 0 has found, be it of the first plans only."""
    error = found["exact"]
    Check(name=f"{name}, exact", figure=f"{error:.1e}", bound="1e-5", passed=error <= 1e-5).say()
    for coded in ("coded", "coded weights"):
        if coded not in found:
            continue
        ratio = found[f"{coded}, loss"] / found["exact, loss"]
        held = abs(ratio - 1) <= 0.05
        Check(name=f"{name}, {coded}: loss / exact", figure=f"{ratio:.3f}", bound="1 +- 0.05", passed=held).say()
        if found["exact, bytes"]:
            figure = f"{found[f'{coded}, bytes'] / found['exact, bytes']:.3f}"
            Check(name=f"{name}, {coded}: bytes / exact", figure=figure).say()


def _started(device: str, out: Path, num_ranks: int) -> str:
    """Run the ranks; return why they have not ended well, or ""."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    world |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(_WORKER), device, str(out)],
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        said = [rank.communicate(timeout=_LIMIT_S)[1] for rank in ranks]
        failed = [text.strip().splitlines()[-1:] for rank, text in zip(ranks, said, strict=True) if rank.returncode]
        return " ".join(line for lines in failed for line in lines) or ("a rank has failed" if failed else "")
    except subprocess.TimeoutExpired:
        return f"it did not end within {_LIMIT_S} s"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
