"""The binary: what it lists, that it starts without torch, what it says of mistakes."""

import subprocess
import sys

import pytest

from cli import inside
from pliant.algorithms import registry
from pliant.cli.topology_file import read_topology_file
from pliant.spec import Custom
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


def install(folder, name, **groups):
    """Put a distribution into a folder of the path: its record, and an entry point in each of the groups."""
    record = folder / f"{name}-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = (f"[pliant.{group}]\n{name} = {where}\n" for group, where in groups.items())
    (record / "entry_points.txt").write_text("".join(points))


@pytest.fixture
def halved(tmp_path, monkeypatch):
    """Two distributions, of which the first cannot be loaded, such as one whose other half was removed."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "halved", commands="not_there:COMMANDS", algorithms="not_there:register")
    install(tmp_path, "whole_one", commands="whole_one:COMMANDS", algorithms="whole_one:register")
    (tmp_path / "whole_one.py").write_text(
        "import pliant\n"
        "COMMANDS = {'whole': ('whole_one:whole', 'Do it all.'), 'plan': ('whole_one:whole', 'Not this one.')}\n"
        "def whole() -> None: print('all of it')\n"
        "def register(): pliant.register('whole_sum', pliant.allreduce)\n"
    )
    registry._register_installed.cache_clear()
    yield
    registry._register_installed.cache_clear()
    registry._OWN.pop("whole_sum", None)
    sys.modules.pop("whole_one", None)


NOT_THERE = "of the distribution halved in the group pliant.{} cannot be loaded (ModuleNotFoundError: No module named"


def test_an_installed_distribution_that_cannot_be_loaded_is_named_and_keeps_no_command_away(halved):
    """It is looked for where a command is not Pliant's."""
    listed, unknown = inside.run("--help"), inside.run("halve")
    assert (listed.returncode, unknown.returncode) == (0, 2)
    for done in (listed, unknown):
        assert NOT_THERE.format("commands") in " ".join(done.stderr.split())
    assert "Do it all." in listed.stdout
    assert "Not this one." not in listed.stdout
    assert "there is no command 'halve'" in unknown.stderr
    for own, shown in ((("simulate", "--help"), "--workload"), (("whole",), "all of it")):
        done = inside.run(*own)
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in done.stdout


def test_an_installed_distribution_that_cannot_be_loaded_is_named_and_keeps_no_algorithm_away(halved):
    assert registry.row_of("whole_sum") is not None
    for text in ("halved", "halved(2)"):
        done = inside.run("simulate", text, "--workload", "vgg16", "--compute", "1ms", "--hosts", "2")
        assert done.returncode == 2
        said = " ".join(done.stderr.split())
        assert "there is no algorithm 'halved'" in said
        assert "whole_sum" in said
        assert NOT_THERE.format("algorithms") in said
    with pytest.raises(ValueError, match=r"'halved', but nobody has registered .* of the distribution halved in"):
        registry.custom_algorithm(Custom(name="halved"))


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
