"""`examples/gpt_fsdp2.py`, end to end: it learns, in all three ways, and a plan sends less."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.extended]

_SCRIPT = Path(__file__).parents[2] / "examples" / "gpt_fsdp2.py"


def _trained(folder, *arguments, size=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", str(_SCRIPT)]
    command += ["--width", "32", "--layers", "1", "--steps", "40", "--length", "32", "--lr", "1e-2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command += ["--json", str(folder / "result.json"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text()), done.stdout


def test_shards_learn_and_a_plan_sends_less(tmp_path):
    exact, _ = _trained(tmp_path, "--plan", "allreduce")
    coded, told = _trained(tmp_path, "--plan", "sharded(gradients=int4, weights=differences(int4))")
    assert exact["held_out_loss"] < 4.0  # a guess is ln 256 = 5.5
    assert abs(coded["held_out_loss"] - exact["held_out_loss"]) < 0.2
    assert coded["sent_bytes_per_step"] < 0.2 * exact["sent_bytes_per_step"]
    assert "MB of residuals of gradients" in told


@pytest.mark.parametrize("parallel", ["ddp", "hsdp"])
def test_whole_models_and_replicas_take_the_same_line(tmp_path, parallel):
    found, _ = _trained(tmp_path, "--parallel", parallel, "--shards", "1", "--plan", "int4")
    assert found["held_out_loss"] < 4.0
