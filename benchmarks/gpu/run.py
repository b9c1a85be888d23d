"""All that is to be proven on a machine with one GPU, part by part, each in a process of its own with a limit.

scripts/gpu starts it. A part that fails, hangs or finds no time says so, and the others go on; results are written
after each. A new part is a file with `run(device)`, which says its checks, and a row of PARTS.
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

from checks import read_checks, write_results

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module beside this one, the most seconds that it may take, and its environment."""

    module: str
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)


PARTS = {
    "versions": Part(module="versions", limit_s=45),
    "kernels": Part(module="kernels", limit_s=120),
    "low rank": Part(module="low_rank", limit_s=45),
    "algorithms": Part(module="algorithms", limit_s=120),
    "two ranks": Part(module="two_ranks", limit_s=90),
    "host syncs": Part(module="host_syncs", limit_s=90),
    "streams": Part(module="streams", limit_s=60, environment={"TORCH_CUDA_SANITIZER": "1"}),
    "fsdp2": Part(module="fsdp2", limit_s=75),
    "memory": Part(module="memory", limit_s=30),
    "four hosts": Part(module="four_hosts", limit_s=180),
}


def _run_part(part: Part, device: str, limit_s: float) -> dict:
    command = [sys.executable, __file__, "--device", device, "--alone", part.module]
    start_s = time.monotonic()
    process = subprocess.Popen(
        command,
        env=os.environ | part.environment,
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
        ended = f"stopped at its limit of {limit_s:.0f} s"
    last = complaint.strip().splitlines()[-1:] if process.returncode else []
    checks = [asdict(check) for check in read_checks(said)]
    return {"seconds": time.monotonic() - start_s, "ended": ended, "error": "".join(last)[-300:], "checks": checks}


def _all_held(parts: dict[str, dict]) -> bool:
    return all(p["ended"] == "ended" and all(c["passed"] is not False for c in p["checks"]) for p in parts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for small sizes")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", default=",".join(PARTS), help="names, with commas between them")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        importlib.import_module(given.alone).run(given.device)
        return
    if unknown := [name for name in given.parts.split(",") if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}.")
    folder, end_s = Path(os.environ.get("OUT") or "results/gpu"), time.monotonic() + 60 * given.minutes
    results: dict[str, dict] = {}
    for name in given.parts.split(","):
        limit_s = min(PARTS[name].limit_s, end_s - time.monotonic())
        if limit_s < 5:
            results[name] = {"seconds": 0.0, "ended": "skipped: no time was left", "error": "", "checks": []}
        else:
            results[name] = _run_part(PARTS[name], given.device, limit_s)
        print(f"{name}: {results[name]['ended']} {results[name]['error']}", flush=True)
        write_results(folder, given.device, results)
    print((folder / "gpu.md").read_text())
    sys.exit(0 if _all_held(results) else 1)


if __name__ == "__main__":
    main()
