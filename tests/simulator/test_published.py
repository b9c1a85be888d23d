"""Published figures, by the simulator; the tables are in docs/simulator.md."""

import importlib
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    monkeypatch.syspath_prepend(str(_FOLDER / "peers"))
    return importlib.import_module


def test_streaming_diloco_is_met_within_a_step_of_its_grid(load):
    diloco, papers = load("simulated_diloco"), load("papers")
    off = []
    for model in papers.MODELS[:2]:
        for method, published in model.published_gbit_per_s.items():
            for share, theirs in zip(papers.UTILISATIONS, published, strict=True):
                if not papers.near(diloco.needed_gbit_per_s(model, method, share), theirs):
                    off.append((model.name, method, share))
    assert off == []


def test_intellect_is_met_within_a_point(load):
    diloco = load("simulated_diloco")
    for seconds, published in diloco.INTELLECT.values():
        assert diloco.utilisation(seconds) == pytest.approx(published, abs=1)


def test_bagua_is_mostly_in_order(load):
    """Its ByteGrad goes through one leader a host, ours in slices by all ranks, so that it comes before QAdam here."""
    bagua = load("simulated_bagua")
    agreements = [bagua.agreement(case) for case in bagua.cases().values()]
    right, total = (sum(column) for column in zip(*agreements, strict=True))
    assert right / total >= 0.87
