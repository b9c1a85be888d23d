"""The binary: what it lists, that it starts without torch, what it says of mistakes."""

import subprocess
import sys

import pytest

from cli import inside


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pliant.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_it_lists_its_commands_and_version():
    assert "simulate" in run("--help").stdout
    assert "emulated hosts" in run("--help").stdout
    assert run("--version").stdout.startswith("pliant, version ")
    assert "--rate" in run("emulate", "--help").stdout


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("benchmark",), "there is no command 'benchmark'; there are doctor"),
        (("emulate", "--rate", "fast", "--", "true"), "'fast' is not a rate"),
        (("emulate", "--rank", "2", "--", "true"), "No such option: --rank"),
        (("emulate", "--", "--ranks", "2", "true"), "begins with '--ranks', which is an option; put it before the --"),
        (("emulate", "--ranks", "0", "--", "true"), "has 0 ranks"),
        (("emulate", "--ranks-per-host", "0", "--", "true"), "has 0 ranks"),
        (
            ("emulate", "--topology", "lam", "--", "true"),
            "there is no topology 'lam': it is neither a file nor one of lan",
        ),
        (("emulate", "--topology", "lan", "--rate", "1mbit", "--", "true"), "--topology lan and --rate both say"),
        (("emulate", "--scale", "0", "--", "true"), "rates cannot be scaled by 0"),
        (("emulate", "--change", "at 1s: 0-9 1mbit", "--", "true"), "'0-9', which is neither a host nor two of them"),
        (("emulate", "--rate", "10bit", "--", "true"), "has 10bit, at which a packet takes longer than a second"),
        (("plan", "--workload", "vgg16", "--compute", "1ms", "--topology", "moon"), "there is no topology 'moon'"),
        (("plan", "--workload", "vgg16", "--compute", "1ms", "--hosts", "2", "--ranks-per-host", "0"), "has 0 ranks"),
        (("probe",), "runs once per rank, in the environment that torchrun sets"),
        (("probe", "--budget", "0s"), "--budget is 0s, but measuring takes time"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence):
    done = inside.run(*arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
