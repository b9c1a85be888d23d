"""Trials of the data set's second version, measured on two emulated hosts."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.netns
@pytest.mark.extended
def test_two_hosts_measure_a_few_trials(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
    trial_list, path = importlib.import_module("dataset.trial_list"), tmp_path / "trials.jsonl"
    (cluster, *_), (cell, *_) = trial_list.read("cluster"), trial_list.read("cell")
    mine = [trial for trial in trial_list.read("trial") if trial["cell"] == cell["cell"]][:3]
    lost = {**mine[0], "origin": "fault", "fault": "lost", "number": 3}
    path.write_text("".join(json.dumps(one) + "\n" for one in (cluster, cell, *mine[:2], lost, mine[2])))
    argv = [sys.executable, str(FOLDER / "dataset" / "measure.py"), "--trials", str(path), "--trial-seconds", "0.5"]
    done = subprocess.run([*argv, "--lines", str(tmp_path / "lines")], capture_output=True, text=True, check=True)
    assert "4 done" in done.stdout
    found = [json.loads(text) for text in (tmp_path / "lines").read_text().splitlines()]
    assert sorted(line["status"] for line in found if line["kind"] == "trial") == ["failed", "ok", "ok", "ok"]
