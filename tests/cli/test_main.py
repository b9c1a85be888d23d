"""The binary: what it lists, how fast it starts, what it says of mistakes."""

import statistics
import subprocess
import sys
import time


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pliant.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_lists_its_commands_and_version():
    assert "bench" in run("--help").stdout
    assert "emulated hosts" in run("--help").stdout
    assert run("--version").stdout.startswith("pliant, version ")
    assert "--rate" in run("emulate", "--help").stdout


def test_it_starts_without_waiting_for_torch():
    """Side by side, since the machine may be busy: well below what importing torch alone takes."""
    ours, torch_alone = [], []
    for _ in range(3):
        for times, command in (
            (torch_alone, ["-c", "import torch"]),
            (ours, ["-m", "pliant.cli.main", "emulate", "--help"]),
        ):
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], capture_output=True, check=True)
            times.append(time.perf_counter() - start)
    assert statistics.median(ours) < 0.6 * statistics.median(torch_alone)


def test_emulate_runs_without_torch():
    code = """
import sys
from pliant.cli.main import main
sys.argv = ["pliant", "emulate", "--help"]
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_mistakes_are_one_sentence():
    for arguments, sentence in (
        (("bench", "--models", "resnet"), "there is no model 'resnet'; there are"),
        (("bench", "--algorithms", "zip"), "there is no algorithm 'zip'; there are"),
        (("emulate", "--rate", "fast", "--", "true"), "'fast' is not a rate"),
        (("probe",), "runs once per rank, in the environment that torchrun sets"),
        (("probe", "--budget", "0s"), "--budget is 0s, but measuring takes time"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert sentence in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
