"""The part `lab` of scripts/gpu: trials among processes side by side, and their lines in one file."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("lab", "run", "checks", "ranks", "merge_lines", "trials")


@pytest.fixture
def lab(monkeypatch):
    """Return the module, which has names in common with other folders of benchmarks."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "gpu"), *sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("lab")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_an_arm_is_of_one_process_and_nobody_has_much_more_to_do(lab):
    """Else two processes would train the same, and differ in the last bits."""
    trials = [trial for trial in lab.read_records(lab.LIST) if trial["size"] == "0.4M" and trial["kind"] != "scaled"]
    lists = lab.shares(trials, 4)
    assert sorted(lab.key_of(trial) for each in lists for trial in each) == sorted(map(lab.key_of, trials))
    arms = [{(t["optimizer"], t["algorithm"], t["windows"], t["ranks"], t["decay"]) for t in each} for each in lists]
    assert sum(map(len, arms)) == len(set().union(*arms))
    costs_s = [sum(trial["expected_s"] for trial in each) for each in lists]
    assert max(costs_s) < 1.5 * min(costs_s)
    assert all(each == sorted(each, key=trials.index) for each in lists)
    assert len(lab.shares(trials[:2], 4)) == 1


def test_what_processes_would_do_is_said_without_a_device(lab, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv(
        "PLIANT_GPU_LAB", "--dry-run --processes 2 --only '*/Muon/ddp/0.4M/32/4/*/linear/*' --only '*/acco/*'"
    )
    lab.run("cuda")
    told = [json.loads(line.removeprefix("CHECK ")) for line in capsys.readouterr().out.splitlines()]
    assert [each["note"] for each in told] == ["Muon ddp, 4 ranks", "AdamW acco, 4 ranks"]
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("PLIANT_GPU_LAB", "--lines gone.jsonl")
    with pytest.raises(ValueError, match=r"there is no gone.jsonl; give lines of an earlier call"):
        lab.run("cuda")
    monkeypatch.setenv("PLIANT_GPU_LAB", "--only '*/lion/*'")
    with pytest.raises(ValueError, match=r"no trial is called \*/lion/\*; they are called as in tuned/AdamW/ddp"):
        lab.run("cuda")


def test_the_part_runs_only_where_it_is_named(lab):
    parts = importlib.import_module("run").PARTS
    assert [name for name, part in parts.items() if part.only_asked] == ["lab"]


@pytest.mark.extended
def test_the_part_trains_small_on_the_cpu_and_goes_on(tmp_path):
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = [ROOT / "scripts" / "gpu", "--device", "cpu", "--parts", "lab", "--lab=--minutes 5 --processes 2"]
    for _ in range(2):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        lines = (tmp_path / "lab.jsonl").read_text()
    checks = json.loads((tmp_path / "gpu.json").read_text())["parts"]["lab"]["checks"]
    assert [check["figure"] for check in checks[:2]] == ["it has done all its trials"] * 2
    assert checks[2]["figure"].startswith("0 in")  # all of them in the first call
    found = [json.loads(line) for line in lines.splitlines()]
    optimizers = [line["optimizer"] for line in found]
    assert optimizers == sorted(optimizers)
    assert set(optimizers) == {"AdamW", "Muon"}
