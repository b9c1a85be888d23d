"""The laws of the Triton kernels, in Triton's interpreter, and who imports Triton at all."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pliant.codecs import kernels
from pliant.codecs.kernels import reference

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not here: pip install --no-deps --target FOLDER triton, and put FOLDER on PYTHONPATH",
)


def laws(which: str) -> None:
    """Run laws in a process whose Triton interprets: it decides when it is imported."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        which,
        HERE / "triton_laws.py",
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_triton
def test_a_sample_of_the_laws_holds():
    laws("not extended")


@needs_triton
@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_the_laws_hold():
    laws("extended")


def test_the_cpu_never_imports_triton(tmp_path):
    (tmp_path / "triton.py").write_text("raise SystemExit('Triton was imported')")
    code = """
import torch
from pliant.codecs import MinMax8

x, payload = torch.ones(9), torch.zeros(21, dtype=torch.uint8)
MinMax8().encode(x, payload, 0)
MinMax8().decode(payload, x)
"""
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, check=True)


def test_an_accelerator_without_triton_gets_the_references_with_one_warning(monkeypatch):
    x = torch.empty(3, device="meta")
    assert kernels.kernels_for(x) is reference  # no accelerator, so no warning
    kernels._on_accelerator.cache_clear()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("meta"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    try:
        with pytest.warns(RuntimeWarning, match=r"Triton is not installed, so torch codes what lies on meta.*cuda"):
            assert kernels.kernels_for(x) is reference
        assert kernels.kernels_for(x) is reference  # a second warning would be an error
    finally:
        kernels._on_accelerator.cache_clear()
