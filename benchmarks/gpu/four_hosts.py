"""Four processes over Gloo, all on the one device, that train a GPT on a slow network: how much of a step is exposed.

Network namespaces give the network, where the machine lets them be made; else each process holds its messages up for
as long as its link would take, and the table says so.
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

_RATES = {"10gbit": 1.25e9, "1gbit": 1.25e8}
_WORKER = Path(__file__).with_name("rank.py")


def run(device: str) -> None:
    for rate, bytes_per_s in _RATES.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            said = _in_namespaces(device, rate, out)
            how = "emulated links" if said is None else "throttled in the process"
            if said is not None:
                Check(name=f"network namespaces at {rate}", figure="not there", note=said[-200:]).say()
                said = _throttled(device, bytes_per_s, out)
            if said is not None:
                Check(name=f"four processes at {rate}", figure=said[-200:], bound="no error", passed=False).say()
                continue
            _say(json.loads(out.read_text()), rate, how, device)


def _say(times: dict[str, float], rate: str, how: str, device: str) -> None:
    compute_s = times.pop("compute")
    Check(name=f"computing alone at {rate}", figure=f"{compute_s * 1e3:.1f} ms a step", note=how).say()
    for name, step_s in times.items():
        exposed = max(0.0, step_s - compute_s) / step_s
        held = exposed <= 0.05 if name == "onebit" and rate == "1gbit" and device == "cuda" else None
        figure = f"{step_s * 1e3:.1f} ms a step, {100 * exposed:.0f} % exposed"
        Check(
            name=f"{name} at {rate}", figure=figure, bound="5 %" if name == "onebit" else "", passed=held, note=how
        ).say()


def _in_namespaces(device: str, rate: str, out: Path) -> str | None:
    """Return None, or why it did not go."""
    emulate = "from pliant.cli.main import main; main()"
    command = [sys.executable, "-c", emulate, "emulate", "--hosts", "4", "--rate", rate, "--timeout", "80s", "--"]
    return _outcome([*command, sys.executable, str(_WORKER), device, str(out), "0"], {}, 85)


def _throttled(device: str, bytes_per_s: float, out: Path) -> str | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(_WORKER), device, str(out), str(bytes_per_s)]
    others = [
        subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in (1, 2, 3)
    ]
    try:
        return _outcome(command, world | {"RANK": "0"}, 80)
    finally:
        for process in others:
            process.kill()
            process.wait()


def _outcome(command: list[str], environment: dict[str, str], limit_s: float) -> str | None:
    try:
        ended = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:.0f} s"
    said = (ended.stderr or ended.stdout).strip().splitlines()
    return None if ended.returncode == 0 else f"exit code {ended.returncode}: {' '.join(said[-2:])}"
