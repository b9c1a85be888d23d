"""All that is to be proven on a machine with one GPU, part by part, each in a process of its own with a limit.

scripts/gpu starts it. All parts have one deadline, and what matters most runs first. A part that fails, hangs or finds
no time says so, and the others go on; results are written after each, with the names of what did not fit. A new part is
a file with `run(device)`, which says its checks, and a row of PARTS.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from checks import read_checks, write_results

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module beside this one, the seconds after which it hangs, and its environment."""

    module: str
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)
    only_asked: bool = False
    """Whether it runs only where it is named."""


PARTS = {
    "versions": Part(module="versions", limit_s=45),
    "kernels": Part(module="kernels", limit_s=120),
    "algorithms": Part(module="algorithms", limit_s=120),
    "host syncs": Part(module="host_syncs", limit_s=90),
    "four hosts": Part(module="four_hosts", limit_s=220),
    "fsdp2": Part(module="fsdp2", limit_s=120),
    "low rank": Part(module="low_rank", limit_s=45),
    "two ranks": Part(module="two_ranks", limit_s=90),
    "whole runs": Part(module="whole_runs", limit_s=90),
    "streams": Part(module="streams", limit_s=100, environment={"TORCH_CUDA_SANITIZER": "1"}),
    "memory": Part(module="memory", limit_s=60),
    "lab": Part(module="lab", limit_s=600, only_asked=True),
}
"""All parts, the most important first. Their limits come to more than the deadline: they are for parts that hang."""
_LEAST_S = 5.0
"""A part that has less than this is not begun."""


def _run_part(part: Part, device: str, left_s: float, log: TextIO) -> dict:
    """Run a part for no longer than what is left to all; return its seconds, how it ended, and its checks.

    What it complains of goes to the log.
    """
    if left_s < _LEAST_S:
        return {"seconds": 0.0, "ended": "not begun: no time was left", "error": "", "checks": [], "fits": False}
    limit_s, fits = min(part.limit_s, left_s), True
    command = [sys.executable, __file__, "--device", device, "--alone", part.module]
    start_s = time.monotonic()
    process = subprocess.Popen(
        command,
        env=os.environ | part.environment | {"PLIANT_GPU_LIMIT_S": str(limit_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaint = process.communicate(timeout=limit_s)
        ended = "ended" if process.returncode == 0 else f"failed with exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, complaint = process.communicate()
        fits = limit_s == part.limit_s
        ended = f"stopped at {'its own limit' if fits else 'the deadline of all'}, after {limit_s:.0f} s"
    except SystemExit:  # somebody ends this process, and must not leave the part behind
        os.killpg(process.pid, signal.SIGKILL)
        raise
    print(f"===== {part.module}", complaint, sep="\n", file=log, flush=True)
    last = complaint.strip().splitlines()[-1:] if process.returncode else []
    checks = [asdict(check) for check in read_checks(said)]
    seconds = time.monotonic() - start_s
    return {"seconds": seconds, "ended": ended, "error": "".join(last)[-300:], "checks": checks, "fits": fits}


def _all_held(parts: dict[str, dict]) -> bool:
    return all(p["ended"] == "ended" and all(c["passed"] is not False for c in p["checks"]) for p in parts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for small sizes")
    parser.add_argument("--minutes", type=float, default=9.0, help="the deadline of all parts")
    parser.add_argument("--spent-s", type=float, default=0.0, help="seconds of it that are gone")
    usual = ",".join(name for name, part in PARTS.items() if not part.only_asked)
    parser.add_argument("--parts", default=usual, help="names in the order of running, with commas")
    parser.add_argument("--lab", default="", help="options of the part lab, one text; see lab.py")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        importlib.import_module(given.alone).run(given.device)
        return
    if unknown := [name for name in given.parts.split(",") if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}.")
    os.environ["PLIANT_GPU_LAB"] = given.lab
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(os.environ.get("OUT") or "results/gpu")
    end_s = time.monotonic() + 60 * given.minutes - given.spent_s
    results: dict[str, dict] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "gpu.log").open("w") as log:
        for name in given.parts.split(","):
            results[name] = _run_part(PARTS[name], given.device, end_s - time.monotonic(), log)
            print(f"{name}: {results[name]['ended']} {results[name]['error']}", flush=True)
            write_results(folder, given.device, results, given.minutes)
    print((folder / "gpu.md").read_text())
    sys.exit(0 if _all_held(results) else 1)


if __name__ == "__main__":
    main()
