"""The laboratory as a distribution of its own: it imports, and is reached by entry points."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pliant
import pliant_bench
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


def test_its_algorithms_are_known_where_pliant_looks_for_names():
    code = "import pliant; print(pliant.parse('every(2, gtopk(ratio=0.05))'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "gtopk" in done.stdout
    assert pliant.parse("dgc(ratio=0.1)") == pliant.topk(0.1, momentum=0.9)
