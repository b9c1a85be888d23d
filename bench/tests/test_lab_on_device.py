"""The part `lab` of scripts/gpu: trials among processes side by side, and their lines in one file."""

import importlib
import json
import os
import select
import signal
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


@pytest.mark.parametrize(("limit_s", "minutes"), [("225", 3.0), ("6000", 8.0), (None, 8.0)])
def test_the_time_is_over_before_the_part_would_be_killed(lab, monkeypatch, limit_s, minutes):
    """Else what was trained last would be lost, and who has failed not be said."""
    asked = []
    monkeypatch.setattr(lab, "carry_out", lambda given, device: asked.append(given.minutes))
    monkeypatch.delenv("PLIANT_GPU_LIMIT_S", raising=False)
    if limit_s is not None:
        monkeypatch.setenv("PLIANT_GPU_LIMIT_S", limit_s)
    lab.run("cuda")
    assert asked == [minutes]


def test_what_processes_leave_behind_is_removed(lab, monkeypatch, tmp_path):
    """As the orders of one that is ended in the midst of a training."""
    job = "import os, pathlib, tempfile\npathlib.Path(__file__).with_name('left').write_text(tempfile.mkdtemp())\n"
    (tmp_path / "measure.py").write_text(f"{job}os._exit(0)\n")
    monkeypatch.setattr(lab, "_JOB", tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("PLIANT_GPU_LAB", "--processes 1")
    lab.run("cpu")
    assert not Path((tmp_path / "left").read_text()).exists()
    assert (tmp_path / "lab.jsonl").read_text() == (tmp_path / "lab.log").read_text().strip() == ""


ENDLESS = """
import os, pathlib, time
with pathlib.Path(__file__).with_name("words").open("w") as words:
    print(os.getpid(), file=words, flush=True)
    time.sleep(3600)
"""
ALONE = "import pathlib, sys, lab; lab._JOB = pathlib.Path(sys.argv[1]); lab.run('cpu')"


@pytest.mark.processes
def test_processes_end_with_the_one_that_has_started_them_however_that_ends(tmp_path):
    os.mkfifo(tmp_path / "words")
    (tmp_path / "measure.py").write_text(ENDLESS)
    path = os.pathsep.join([str(ROOT / "benchmarks" / "gpu"), *filter(None, sys.path)])
    environment = os.environ | {"OUT": str(tmp_path), "PLIANT_GPU_LAB": "--processes 1", "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", ALONE, str(tmp_path)], env=environment) as job:
        with (tmp_path / "words").open() as words:
            trains = int(words.readline())
            job.kill()
            ended, _, _ = select.select([words], [], [], 60)  # once nobody can write any more
        if not ended:
            os.kill(trains, signal.SIGKILL)
    assert ended


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
