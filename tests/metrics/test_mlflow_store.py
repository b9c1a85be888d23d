"""MLflow's store may be slow, silent or broken: the training loop never waits for it."""

import threading
from types import SimpleNamespace

import pytest

from pliant.metrics import MLflow, mlflow


class Store:
    """A store that takes no rows before it is opened, and then those up to a step that is bad."""

    def __init__(self, bad_step=None):
        self.open, self.bad_step, self.steps, self.tags = threading.Event(), bad_step, [], []

    def log_batch(self, run_id, metrics, tags):
        assert run_id == "run"
        self.open.wait()
        if any(step == self.bad_step for _, _, _, step in metrics):
            raise OSError("the store is full")
        self.steps += [step for _, _, _, step in metrics]
        self.tags += tags


@pytest.fixture
def started(monkeypatch):
    """Return a function that begins to log to a store."""
    stores = []

    def start(**settings):
        stores.append(Store(**settings))
        entities = SimpleNamespace(Metric=lambda *row: row, RunTag=lambda *row: row)
        module = SimpleNamespace(entities=entities, MlflowClient=lambda uri: stores[-1], get_tracking_uri=lambda: "own")
        monkeypatch.setattr(mlflow, "require", lambda module_name, package: module)
        monkeypatch.setattr(mlflow, "_PATIENCE_S", 0.01)
        return MLflow("run"), stores[-1]

    yield start
    for store in stores:
        store.open.set()


def log_all(log, steps):
    for step in steps:
        log.log(step, {"step_s": 0.1})


def test_rows_come_in_their_order(started, monkeypatch):
    log, store = started()
    monkeypatch.setattr(mlflow, "_PATIENCE_S", 30)
    store.open.set()
    for step in range(50):
        log.log(step, {"step_s": 0.1} | ({"plan": "onebit"} if step == 0 else {}))
    log.close()
    assert store.steps == list(range(50))
    assert store.tags == [("pliant/plan", "onebit")]


def test_a_store_that_does_not_answer_is_named_and_nobody_waits(started):
    log, _ = started()
    log_all(log, range(100))
    with pytest.raises(TimeoutError, match="MLflow's store own does not answer; start it, or log to a folder"):
        log_all(log, range(100, 160))
    with pytest.raises(TimeoutError, match="MLflow's store own does not answer"):
        log.close()


def test_what_the_store_raises_comes_with_the_next_rows(started, monkeypatch):
    log, store = started(bad_step=3)
    monkeypatch.setattr(mlflow, "_PATIENCE_S", 30)
    store.open.set()
    log_all(log, range(20))
    with pytest.raises(OSError, match="the store is full"):
        log.close()


def test_a_log_without_rows_closes(started):
    log, _ = started()
    log.close()
