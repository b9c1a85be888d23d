"""The laboratory as a distribution of its own: it imports, and is reached by entry points."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pliant
import pliant_bench
from cli import inside
from pliant.cli.main import COMMANDS


def test_every_module_imports():
    folder = Path(pliant_bench.__file__).parent
    for path in folder.rglob("*.py"):
        import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"))


@pytest.mark.parametrize("command", pliant_bench.COMMANDS)
def test_its_commands_are_those_of_pliant(command):
    assert command not in COMMANDS
    done = subprocess.run(
        [sys.executable, "-m", "pliant.cli.main", command, "--help"], check=True, capture_output=True, text=True
    )
    assert f"pliant {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--models", "resnet"), "there is no model 'resnet'; there are"),
        (("--algorithms", "zip"), "there is no algorithm 'zip'; there are"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence):
    done = inside.run("bench", *arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_its_algorithms_are_known_where_pliant_looks_for_names():
    code = "import pliant; print(pliant.parse('every(2, gtopk(ratio=0.05))'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "gtopk" in done.stdout
    assert pliant.parse("dgc(ratio=0.1)") == pliant.topk(0.1, momentum=0.9)
