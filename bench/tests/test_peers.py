"""The comparison with other libraries, as far as it can be tested without them."""

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/peers."""
    monkeypatch.syspath_prepend(str(_FOLDER))

    def load_one(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load_one


def test_every_pair_has_a_worker_pinned_requirements_and_an_arm_of_pliant(load):
    for pair in load("jobs").PAIRS.values():
        assert (_FOLDER / f"{pair.package}_worker.py").exists()
        if pair.package != "torch":  # which runs in Pliant's environment
            pins = (_FOLDER / "requirements" / f"{pair.package}.txt").read_text().split()
            assert all("==" in pin for pin in pins)
        assert " " in pair.version
        assert pair.pliant in load("pliant_worker").ALGORITHMS


def test_a_job_survives_its_file_and_times_whole_periods(load, tmp_path):
    jobs = load("jobs")
    assert jobs.whole_periods(100, 8) == 104
    assert jobs.whole_periods(0, 32) == 32
    job = jobs.Job(arm="x", period=8, model="cnn", seed=0, warm_up_steps=10, steps=90, data="")
    job.write(tmp_path / "job.json")
    assert jobs.Job.read(tmp_path / "job.json") == job
    assert job.lr_factor(0) == pytest.approx(0.1)
    assert job.lr_factor(9) == 1
    assert job.lr_factor(99) == pytest.approx(1 / 90)


def test_the_table_pairs_rounds_and_keeps_what_did_not_run(load):
    def run(side: str, turn: int, step_s: float) -> dict[str, object]:
        about = {"peer": "decent-dp", "version": "decent-dp 0.2.3", "model": "cnn", "side": side, "round": turn}
        return {**about, "step_s": step_s, "wire_bytes": 1e6, "accuracy": 0.5, "distance": 0.0}

    failed = {"peer": "hivemind", "version": "hivemind 1", "model": "cnn", "side": "peer", "error": "no wheel."}
    records = [run("peer", 0, 0.2), run("pliant", 0, 0.1), run("pliant", 1, 0.1), run("peer", 1, 0.4), failed]
    text = load("table").markdown({"network": "4 hosts", "provenance": [{"time": "now"}], "records": records})
    assert "3.00x (2.00-4.00)" in text
    assert "did not run: no wheel." in text


def test_an_interrupted_comparison_goes_on_where_it_was(load, tmp_path, monkeypatch):
    run = load("run")
    made: list[tuple[str, int]] = []
    fails_at: list[int] = []

    def fake(argv: list[str], job: Any, *_: object) -> dict[str, object]:
        if len(made) in fails_at:
            fails_at.clear()
            raise KeyboardInterrupt
        if job.arm == "ddp-powersgd":
            raise RuntimeError("no luck.")
        made.append((job.arm, job.seed))
        return {"step_s": 0.1, "wire_bytes": 1e6, "accuracy": None, "distance": 0.0}

    def command(*more: str) -> None:
        files = ["--json", str(tmp_path / "p.json"), "--md", str(tmp_path / "p.md")]
        monkeypatch.setattr(
            sys, "argv", ["run.py", "--models", "chars", "--peers", "torch-ddp,torch-powersgd", *files, *more]
        )
        run.main()

    monkeypatch.setattr(run, "_run", fake)
    monkeypatch.setattr(run, "emulate_cluster", lambda topology: nullcontext())
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    fails_at.append(3)
    with pytest.raises(KeyboardInterrupt):
        command()
    assert made == [("ddp", 0), ("allreduce", 0), ("allreduce", 1)]
    with pytest.raises(SystemExit, match="goes on from here"):
        command("--minutes", "-1")
    command()
    assert made[3:] == [("ddp", 1)]
    text = (tmp_path / "p.md").read_text()
    assert "1.00x" in text
    assert "did not run: no luck." in text
    with pytest.raises(ValueError, match="give another --json"):
        command("--hosts", "2")
