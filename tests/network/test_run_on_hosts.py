"""`pliant run` on emulated hosts: an unedited script gets a plan, and the line to paste."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.processes, pytest.mark.extended]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        # A search of quick plans takes up to 16 of their steps in each trial and turn: up to some 500.
        ("plain_ddp.py", ["--width", "256", "--steps", "600"]),
        ("plain_fsdp2.py", ["--steps", "160"]),
    ],
)
def test_on_a_slow_network_a_plan_is_kept_and_the_line_is_there(script, arguments, tmp_path):
    report, plan = tmp_path / "verdict.json", tmp_path / "plan.json"
    example = Path(__file__).parents[2] / "examples" / script
    own = ["--emulate", "hosts=2,rate=20mbit", "--json", str(report), "--out", str(plan)]
    command = [sys.executable, "-m", "pliant", "run", *own, "--", sys.executable, str(example)]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdict = json.loads(report.read_text())
    assert verdict["decided"]
    assert verdict["plan"] == json.loads(plan.read_text())
    assert 1 <= verdict["steps_ratio"] <= 1.1
    assert verdict["speedup"] == pytest.approx(verdict["baseline_step_s"] / verdict["step_s"] / verdict["steps_ratio"])
    assert verdict["line"].startswith("run = pliant.relax(model, optimizer, ")
    assert verdict["sent_bytes"] < verdict["baseline_sent_bytes"]
    assert len([row for row in verdict["frontier"] if not row["loses"]]) == 3
