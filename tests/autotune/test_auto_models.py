"""A sample of benchmarks/auto_models: outputs, losses and ways to train that plain DDP takes, under "auto"."""

import importlib
import math
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "auto_models"


@pytest.mark.parametrize(
    "name",
    [
        *("one logit", "dataclass, numbers"),
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("scalar, softmax", "sparse embedding")),
    ],
)
def test_auto_ends_no_training(monkeypatch, name):
    monkeypatch.syspath_prepend(str(_FOLDER))
    job, models = importlib.import_module("job"), importlib.import_module("small_models")
    monkeypatch.setattr(importlib.import_module("pliant.comm.transport"), "new_comm", job.slow_group)
    (case,) = (case for case in models.CASES if case.name == name)
    line = job.line_of(case, "SGD", "auto 1.5", 0, num_steps=40)
    assert "error" not in line, line
    assert math.isfinite(line["loss"])


def test_every_model_is_another(monkeypatch):
    monkeypatch.syspath_prepend(str(_FOLDER))
    job, models = importlib.import_module("job"), importlib.import_module("small_models")
    assert len({case.name for case in models.CASES}) == len(models.CASES) == 40
    assert len(list(job.trials())) == 40 * 2 * 4 * 3
    row = {"optimizer": "SGD", "seed": 0, "model": "softmax"}
    lines = [{**row, "arm": "ddp", "loss": 1.0}, {**row, "arm": "auto 1.5", "loss": 1.006}]
    assert "| +0.60% | 0.00% | 1 | **worse** |" in job.table(lines)
