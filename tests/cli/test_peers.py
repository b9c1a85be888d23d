"""The comparison with other libraries, as far as it can be tested without them."""

import importlib
from pathlib import Path
from types import ModuleType

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
        pins = (_FOLDER / "requirements" / f"{pair.package}.txt").read_text().split()
        assert all("==" in pin for pin in pins)
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


def test_published_bandwidths_are_within_a_grid_step_but_for_one(load):
    assert sum(r"\*" in cell for line in load("papers").table() for cell in line.split("|")) == 1
