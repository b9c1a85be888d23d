"""Versions of Pliant side by side: commits unpacked and built in a folder, run by this environment's Python."""

import os
import platform
import subprocess
import time
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]


def commit_of(name: str) -> str:
    """Return the short hash of a commit; ends with git's message where there is none."""
    argv = ["git", "-C", str(REPOSITORY), "rev-parse", "--short=7", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def built(commit: str, folder: Path) -> Path:
    """Unpack a commit's sources, build its C parts as its CMakeLists.txt says, and return what goes on PYTHONPATH."""
    root = folder / commit
    root.mkdir()
    argv = ["git", "-C", str(REPOSITORY), "archive", commit, "src", "CMakeLists.txt"]
    archive = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(root)], input=archive, check=True)
    build = str(root / "build")
    for args in (
        ["-S", str(root), "-B", build],
        ["--build", build],
        ["--install", build, "--prefix", str(root / "src")],
    ):
        subprocess.run(["cmake", *args], check=True, stdout=subprocess.DEVNULL)
    return root / "src"


def environment(src: Path) -> dict[str, str]:
    """Return this process's environment, in which `import pliant` finds the version under `src`."""
    return {**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def machine() -> dict[str, str]:
    """Return the machine and the software that a measurement ran on, and how busy it was."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": f"{os.cpu_count()} x {cpus[0].partition(':')[2].strip() if cpus else platform.machine()}",
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
