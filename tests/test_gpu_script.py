"""scripts/gpu runs where there is no GPU, so that it can be trusted where there is one."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(folder, parts):
    environment = os.environ | {"OUT": str(folder), "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = [ROOT / "scripts" / "gpu", "--device", "cpu", "--parts", parts]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (folder / "gpu.json").exists(), ended.stderr
    return ended, json.loads((folder / "gpu.json").read_text())["parts"]


@pytest.mark.extended
def test_all_parts_but_the_network_hold_on_the_cpu(tmp_path):
    ended, parts = run(tmp_path, "versions,kernels,low rank,algorithms,two ranks,host syncs,streams,fsdp2,memory")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all(part["ended"] == "ended" and part["checks"] for part in parts.values())
    table = (tmp_path / "gpu.md").read_text()
    assert "| kernels | minmax8-2048 equals C | equal | to the bit | yes |" in table
    assert "NO" not in table


@pytest.mark.extended
@pytest.mark.netns
def test_four_processes_train_on_the_cpu(tmp_path):
    ended, parts = run(tmp_path, "four hosts")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = [check["name"] for check in parts["four hosts"]["checks"]]
    assert {"onebit at 1gbit", "onebit at 10gbit"} <= set(names)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a function that runs a bad part and a good one, and returns what the JSON file and the table say."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    for name in ("run.py", "checks.py"):
        (tmp_path / name).write_text((ROOT / "benchmarks" / "gpu" / name).read_text())
    good = "from checks import Check\n\ndef run(device):\n    Check(name='one', figure='1', passed=True).say()\n"
    (tmp_path / "good.py").write_text(good)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))

    def run_both(code, *options, limit_s=6):
        (tmp_path / "bad.py").write_text(good + f"    {code}\n")
        module = runpy.run_path(str(tmp_path / "run.py"))
        part = module["Part"]
        parts = {"bad": part(module="bad", limit_s=limit_s), "good": part(module="good", limit_s=20)}
        module["main"].__globals__["PARTS"] = parts
        monkeypatch.setattr(sys, "argv", ["run.py", "--device", "cpu", "--parts", "bad,good", *options])
        with pytest.raises(SystemExit, match="1"):
            module["main"]()
        return json.loads((tmp_path / "out" / "gpu.json").read_text()), (tmp_path / "out" / "gpu.md").read_text()

    return run_both


HANG = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("raise OSError('no such thing')", "failed"),
        pytest.param(HANG, "stopped at its own", marks=pytest.mark.extended),
    ],
)
def test_a_part_that_fails_or_hangs_says_so_and_the_others_go_on(results, code, ended):
    told, table = results(code)
    parts = told["parts"]
    assert [check["name"] for check in parts["bad"]["checks"]] == ["one"]
    assert parts["bad"]["ended"].startswith(ended)
    assert parts["good"]["ended"] == "ended"
    assert told["did_not_fit"] == []
    assert "what did not fit: nothing." in table


@pytest.mark.extended
def test_all_parts_have_one_deadline_and_what_does_not_fit_is_named(results):
    told, table = results(HANG, "--minutes", "9", "--spent-s", str(9 * 60 - 6), limit_s=100)
    assert told["parts"]["bad"]["ended"].startswith("stopped at the deadline of all")
    assert told["parts"]["good"]["ended"] == "not begun: no time was left"
    assert told["did_not_fit"] == ["bad", "good"]
    assert "9 minutes for all parts; what did not fit: bad, good." in table


class Arms:
    """Steps of a model whose backward pass takes 20 ms, and 10 ms more for each sequence."""

    first = 8

    def most(self):
        return 40

    def backward_s(self, batch):
        return 0.02 + 0.01 * batch

    def compute_s(self, batch):
        return 1.5 * self.backward_s(batch)

    def relaxed(self, name, batch):
        return 2 * self.backward_s(batch), 0.0


@pytest.mark.parametrize(("wire_s", "batches"), [(0.1, [11, 5]), (0.01, [1]), (1.0, [40, 20])])
def test_the_smallest_batch_that_hides_the_wire_is_found_and_half_of_it(wire_s, batches, monkeypatch):
    """1.3 times 100 ms are what a pass over 11 sequences takes; nothing takes 1.3 s, and all that fits is tried."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    found = runpy.run_path(str(ROOT / "benchmarks" / "gpu" / "rank.py"))["hidden_steps"](Arms(), "onebit", wire_s)
    assert [each["batch"] for each in found.values()] == batches
