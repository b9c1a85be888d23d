"""`examples/dlrm.py`, end to end: it learns, and a run that was broken off goes on as if it had not been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pliant.spec import Host, Topology, save

pytestmark = pytest.mark.processes

_SCRIPT = Path(__file__).parents[2] / "examples" / "dlrm.py"
_SIZE = 2
_SHARE = 0.3
"""Of what separates the best AUC from a guess; 60 steps of 2 x 256 samples reach twice as much."""


def _dlrm(folder, *arguments, size=_SIZE):
    """Run it on so many ranks; return what it wrote."""
    save(Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e8) for k in range(size))), folder / "links.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command += [str(_SCRIPT), "--max-rows", "500", "--batch", "256", "--test-batches", "8"]
    command += ["--topology", str(folder / "links.json"), "--json", str(folder / "result.json"), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text()), done.stdout


def _equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        # Python's and NumPy's generators begin where each process has put them.
        return a.keys() == b.keys() and all(key == "random" or _equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a == b


@pytest.mark.extended
def test_it_learns(tmp_path):
    result, _ = _dlrm(tmp_path, "--steps", "60", "--algorithm", "bytegrad", "--embedding-optimizer", "adam")
    assert result["auc"] > 0.5 + _SHARE * (result["best_auc"] - 0.5)


@pytest.mark.extended
def test_a_broken_run_goes_on_to_the_bit(tmp_path):
    results, states = [], []
    for name, ends in (("whole", (120,)), ("broken", (60, 120))):
        folder = tmp_path / name
        folder.mkdir()
        for steps in ends:
            arguments = ("--steps", str(steps), "--save-every", "60", "--checkpoint", str(folder / "saved"))
            result, said = _dlrm(folder, *arguments, "--algorithm", "bytegrad", "--embedding-optimizer", "adam")
        results.append(result)
        assert "goes on after step 60" in said or name == "whole"
        assert [path.name for path in (folder / "saved").iterdir()] == ["step00000120"]
        states.append(
            [torch.load(folder / "saved" / "step00000120" / f"rank{r}.pt", weights_only=True) for r in range(_SIZE)]
        )
    assert _equal(states[0], states[1])
    assert results[0]["auc"] == results[1]["auc"]


@pytest.mark.extended
def test_it_goes_on_with_another_number_of_ranks(tmp_path):
    arguments = ("--checkpoint", str(tmp_path / "saved"), "--memory", "20MB", "--pooling", "3")
    before, _ = _dlrm(tmp_path, *arguments, "--steps", "40", "--max-staleness", "3", "--bits", "32,16")
    after, said = _dlrm(tmp_path, *arguments, "--steps", "41", size=1)
    assert "goes on after step 40, saved by 2 ranks, with 1" in said
    assert after["steps"] == 41
    assert after["auc"] > 0.5 + 0.5 * (before["auc"] - 0.5)
