"""Scripts from three sources, unedited under `pliant run`: they end as they do without it."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 60


def ranks(script, tmp_path, *before):
    """Run a script on two ranks, started by torchrun; return the sums of parameters that ranks have printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    words = [*before, *torchrun, str(SCRIPTS / script), str(STEPS)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sums = [float(found) for found in re.findall(r"sum (-?\d[\d.]*(?:e[-+]\d+)?)", ended.stdout)]
    assert len(sums) == 2
    return sums, ended.stderr


@pytest.mark.parametrize(
    ("script", "how", "optimizer"),
    [
        pytest.param("tutorial.py", "DDP", "SGD", marks=pytest.mark.extended),
        pytest.param("accumulate.py", "DDP", "AdamW and SGD", marks=pytest.mark.extended),
        pytest.param("no_loss.py", "DDP", "SGD", marks=pytest.mark.extended),
        pytest.param("fsdp2.py", "FSDP2", "SGD", marks=pytest.mark.extended),
        pytest.param(
            "accelerated.py",
            "DDP",
            "AdamW",
            marks=[
                pytest.mark.extended,
                pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate"),
            ],
        ),
    ],
)
def test_an_unedited_script_is_measured_and_ends_with_its_own_weights(script, how, optimizer, tmp_path):
    plain, _ = ranks(script, tmp_path)
    report = tmp_path / "verdict.json"
    pliant = [sys.executable, "-m", "pliant", "run", "--quality", "exact", "--json", str(report), "--"]
    found, said = ranks(script, tmp_path, *pliant)
    assert found[0] == found[1]
    assert found[0] == pytest.approx(plain[0], rel=5e-3)  # 16 bits in some steps
    verdict = json.loads(report.read_text())
    assert (verdict["how"], verdict["optimizer"], verdict["num_ranks"]) == (how, optimizer, 2)
    assert verdict["num_steps"] == STEPS - 1  # the first step only tells that there is one
    assert verdict["baseline_step_s"] > 0
    assert verdict["baseline_sent_bytes"] > 0
    assert verdict["search_steps"] > 0
    assert "Verdict: " in said
    assert said.count("Verdict: ") == 1
    assert list(tmp_path.glob("pliant-run-*")) == []


@pytest.mark.extended
def test_each_rank_may_have_a_command_of_its_own(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    own = ["-m", "pliant", "run", "--", sys.executable, str(SCRIPTS / "tutorial.py"), "30"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    ended = subprocess.run([*torchrun, *own], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Verdict: ") == 1
    assert "(2 ranks, SGD)" in ended.stderr
