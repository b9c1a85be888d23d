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

_RATES = {"1gbit": (1.25e8, "onebit,bytegrad"), "10gbit": (1.25e9, "onebit,bytegrad,allreduce")}
"""Bytes a second, and algorithms: float32 of 124 M parameters would take 6 s a step at 1 Gbit/s."""
_LIMIT_S = 100
_WORKER = Path(__file__).with_name("rank.py")


def run(device: str) -> None:
    for rate, (bytes_per_s, names) in _RATES.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            said = _in_namespaces(rate, [device, str(out), str(bytes_per_s), "0", names])
            how = "emulated links" if said is None else "throttled in the process"
            if said is not None:
                Check(name=f"network namespaces at {rate}", figure="not used", note=said[-200:]).say()
                out.unlink(missing_ok=True)
                said = _throttled([device, str(out), str(bytes_per_s), "1", names])
            if said is not None:
                Check(name=f"four processes at {rate}", figure=said[-200:], bound="no error", passed=False).say()
            if out.exists():
                _say(json.loads(out.read_text()), rate, how, device)


def _say(found: dict[str, dict], rate: str, how: str, device: str) -> None:
    times = found["times"]
    compute_s = times.pop("compute")
    Check(name=f"computing alone at {rate}", figure=f"{compute_s * 1e3:.1f} ms a step", note=how).say()
    for name, step_s in times.items():
        figure = f"{step_s * 1e3:.1f} ms a step, {100 * _exposed(step_s, compute_s):.0f} % exposed"
        Check(name=f"{name} at {rate}", figure=figure, note=how).say()
    for which, each in found["hidden"].items():
        wanted = device == "cuda" and rate == "1gbit"
        _say_hidden(f"onebit at {rate}, batch {each['batch']}", which, each, wanted=wanted)


def _exposed(step_s: float, compute_s: float) -> float:
    return max(0.0, step_s - compute_s) / step_s


def _say_hidden(name: str, which: str, found: dict[str, float], *, wanted: bool) -> None:
    """Say what is exposed where backward is long enough to hide the wire, and how long a step is with half of that.

    Where the device has no room for so large a batch, nothing is held.
    """
    step_s, compute_s, wire_s = found["step"], found["compute"], found["wire"]
    exposed, longer = _exposed(step_s, compute_s), step_s / max(compute_s, wire_s)
    if which == "whole":
        wanted &= found["backward"] >= 1.3 * wire_s
        figure, bound, held = f"{100 * exposed:.0f} % exposed", "5 %", exposed <= 0.05
    else:
        figure, bound, held = f"{longer:.2f} of the longer of computing and the wire", "1.10", longer <= 1.1
    parts = ("step", step_s), ("computing", compute_s), ("backward", found["backward"]), ("wire", wire_s)
    note = ", ".join(f"{what} {seconds * 1e3:.1f} ms" for what, seconds in parts)
    Check(name=name, figure=figure, bound=bound, passed=held if wanted else None, note=note).say()


def _in_namespaces(rate: str, arguments: list[str]) -> str | None:
    """Return None, or why it did not go."""
    emulate = "from pliant.cli.main import main; main()"
    command = [sys.executable, "-c", emulate, "emulate", "--hosts", "4", "--rate", rate]
    command += ["--timeout", f"{_LIMIT_S}s", "--", sys.executable, str(_WORKER), *arguments]
    return _outcome(command, {}, _LIMIT_S + 5)


def _throttled(arguments: list[str]) -> str | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(_WORKER), *arguments]
    others = [
        subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in (1, 2, 3)
    ]
    try:
        return _outcome(command, world | {"RANK": "0"}, _LIMIT_S)
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
