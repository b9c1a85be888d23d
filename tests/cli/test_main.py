"""The binary: what it lists, that it starts without torch, what it says of mistakes."""

import os
import subprocess
import sys

import pytest

from cli import inside
from pliant.cli.topology_file import read_topology_file
from pliant.spec.worlds import world


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


def test_an_installed_distribution_that_cannot_be_loaded_keeps_no_command_of_its_own_away(tmp_path):
    """Such as one whose other half was removed; it is looked for where a command is not Pliant's."""
    half = tmp_path / "halved-1.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: halved\nVersion: 1\n")
    (half / "entry_points.txt").write_text("[pliant.commands]\nhalved = not_there:COMMANDS\n")
    code = "import sys; sys.argv[1:] = ['simulate', '--help']; from pliant.cli.main import main; main()"
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "--workload" in done.stdout


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
        (("doctor", "--connections", "1"), "--connections is 1, but several are compared with one"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence):
    done = inside.run(*arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


VGG16 = ("plan", "--workload", "vgg16", "--compute", "1ms", "--hosts", "2")
SIMULATE = ("simulate", "allreduce", *VGG16[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        *((*VGG16, flag) for flag in ("--out", "--trace", "--json")),
        *(("schedule", "--hosts", "2", flag) for flag in ("--draw", "--out", "--json")),
        *(("embed", "criteo", "--hosts", "2", flag) for flag in ("--plot", "--out", "--json")),
        *((*SIMULATE, flag) for flag in ("--trace", "--json")),
        *(("report", "recorded", flag) for flag in ("--html", "--trace", "--json")),
        *(("probe", flag) for flag in ("--out", "--machine")),
        ("doctor", "--json"),
        *(("run", flag) for flag in ("--out", "--json")),
        ("emulate", "--json"),
    ],
)
def test_a_result_that_cannot_be_written_is_named_before_the_work(arguments, tmp_path):
    """No plan is searched for, and no command is run, whose result would be lost."""
    taken, trace = tmp_path / "taken", tmp_path / "trace"
    taken.write_text("")
    work = ("--", sys.executable, "-c", f"open({str(trace)!r}, 'w')") if arguments[0] in ("run", "emulate") else ()
    done = inside.run(*arguments, taken / "result.html", *work)
    assert done.returncode == 2
    said = "".join(done.stderr.split())  # a path is broken anywhere
    assert "result.htmlistobewritten,butitsfolderdoesnottakeafile" in said
    assert done.stdout == ""
    assert not trace.exists()


def test_a_rank_that_is_not_the_first_writes_nothing_and_needs_no_place(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "taken").write_text("")
    done = inside.run("run", "--out", tmp_path / "taken" / "plan.json", "--", sys.executable, "-c", "pass")
    assert done.returncode == 0, done.stderr


def test_a_folder_with_the_name_of_a_world_is_no_topology(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lan").mkdir()
    assert read_topology_file("lan") == world("lan")
