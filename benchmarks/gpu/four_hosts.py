"""Four processes over Gloo, all on the one device, that train a GPT on a slow network: how much of a step is exposed.

Network namespaces give the network, where the machine lets them be made; else each process holds its messages up for
as long as its link would take, and the table says so.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from checks import Check
from ranks import shared_device, started

__all__ = ["run"]

_CASES = (
    ("1gbit", 1.25e8, "onebit", "bytes"),
    ("1gbit", 1.25e8, "onebit", "words"),
    ("10gbit", 1.25e9, "onebit,bytegrad,allreduce", "words"),
)
"""Rate, its bytes a second, algorithms, and what the GPT reads: float32 would take 6 s a step at 1 Gbit/s.

A GPT has the gradients of its tokens last. Of words they are a third of all, which no backward pass can hide.
"""
_LIMIT_S = 100
_WORKER = Path(__file__).with_name("rank.py")


def run(device: str) -> None:
    with shared_device() if device == "cuda" else nullcontext({}) as environment:
        if device == "cuda":
            Check(name="the device is shared", figure="by MPS" if environment else "by slices of time").say()
        for case in _CASES if device == "cuda" else _CASES[1:]:
            _measure(device, *case, environment)


def _measure(device: str, rate: str, bytes_per_s: float, names: str, reads: str, environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        said = _in_namespaces(rate, [device, str(out), str(bytes_per_s), "0", names, reads], environment)
        how = "throttled in the process" if said else "emulated links"
        if said:
            Check(name=f"network namespaces at {rate}", figure="not used", note=said[-200:]).say()
            out.unlink(missing_ok=True)
            arguments = [device, str(out), str(bytes_per_s), "1", names, reads]
            said = started(_WORKER, arguments, 4, _LIMIT_S, environment)
        if said:
            Check(name=f"four processes at {rate}", figure=said[-300:], bound="no error", passed=False).say()
        if out.exists():
            _say(json.loads(out.read_text()), rate, how, device, reads)


def _say(found: dict[str, dict], rate: str, how: str, device: str, reads: str) -> None:
    times = found["times"]
    compute_s = times.pop("compute")
    at = f"at {rate}" if reads == "words" else f"at {rate}, {reads}"
    Check(name=f"computing alone {at}", figure=f"{compute_s * 1e3:.1f} ms a step", note=how).say()
    for name, step_s in times.items():
        figure = f"{step_s * 1e3:.1f} ms a step, {100 * _exposed(step_s, compute_s):.0f} % exposed"
        Check(name=f"{name} {at}", figure=figure, note=how).say()
    for which, each in found["hidden"].items():
        wanted = device == "cuda" and rate == "1gbit"
        _say_hidden(f"onebit {at}, batch {each['batch']}", which, each, wanted=wanted)


def _exposed(step_s: float, compute_s: float) -> float:
    return max(0.0, step_s - compute_s) / step_s


def _say_hidden(name: str, which: str, found: dict[str, float], *, wanted: bool) -> None:
    """Say what is exposed where backward is long enough to hide the wire, and how long a step is with half of that.

    Where the device has no room for so large a batch, nothing is held.
    """
    step_s, compute_s, backward_s, wire_s = (found[name] for name in ("step", "compute", "backward", "wire"))
    exposed, longer = _exposed(step_s, compute_s), step_s / max(compute_s, wire_s)
    if which == "whole":
        wanted &= backward_s >= 1.3 * wire_s
        figure, bound, held = f"{100 * exposed:.0f} % exposed", "5 %", exposed <= 0.05
    else:
        figure, bound, held = f"{longer:.2f} of the longer of computing and the wire", "1.10", longer <= 1.1
    parts = ("step", step_s), ("computing", compute_s), ("backward", backward_s), ("wire", wire_s)
    note = ", ".join(f"{what} {seconds * 1e3:.1f} ms" for what, seconds in parts)
    Check(name=name, figure=figure, bound=bound, passed=held if wanted else None, note=note).say()


def _in_namespaces(rate: str, arguments: list[str], environment: dict[str, str]) -> str:
    """Return "", or why it did not go."""
    if shutil.which("ip") is None:
        return "no iproute2 there"
    emulate = "from pliant.cli.main import main; main()"
    command = [sys.executable, "-c", emulate, "emulate", "--hosts", "4", "--rate", rate]
    command += ["--timeout", f"{_LIMIT_S}s", "--", sys.executable, str(_WORKER), *arguments]
    try:
        ended = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=_LIMIT_S + 5, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_LIMIT_S + 5} s"
    said = (ended.stderr or ended.stdout).strip().splitlines()
    return f"exit code {ended.returncode}: {' '.join(said[-2:])}" if ended.returncode else ""
