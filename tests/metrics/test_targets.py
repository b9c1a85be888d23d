"""Rows of a run are read back from where each target has written them."""

import json
import struct
import sys
import types
from importlib.util import find_spec

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.metrics import CsvFile, JsonLines, MLflow, OpenTelemetry, Prometheus, TensorBoard, WandB, read_rows
from waiting import until

STEPS = 4


def needs(module, package):
    missing = pytest.mark.skipif(find_spec(module) is None, reason=f"needs {package}: pip install {package}")
    return lambda test: pytest.mark.extended(missing(test))


def train(target, *, algorithm="onebit", **options):
    """Train 2 ranks that all log; return the bytes that rank 0 has sent."""

    def rank(context):
        module = torch.nn.Linear(64, 64)
        model = DistributedDataParallel(module, process_group=context.process_group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, algorithm) as run:
            if context.rank == 0 or not callable(target):
                run.log_to(target() if callable(target) else target, **options)
            for _ in range(STEPS):
                loss = model(torch.ones(4, 64)).square().mean()
                loss.backward()
                run.log({"loss": loss})
                optimizer.step()
            return run.stats()["sent_bytes"]

    return pliant.run_world(2, rank)[0]


def test_csv_and_json_lines(tmp_path):
    for name in ("run.csv", "run.jsonl"):
        sent_bytes = train(tmp_path / name)
        rows = read_rows(tmp_path / name)
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert sum(row["sent_bytes"] for row in rows) == sent_bytes
        assert rows[0]["plan"] == "onebit"
        assert "plan" not in rows[1]
        assert all(row["step_s"] > 0 and row["exposed_s"] >= 0 and row["loss"] > 0 for row in rows)
        assert rows[-1]["bytes_vs_ddp"] == sent_bytes / (STEPS * 4 * 65 * 64)


def test_a_file_is_continued_and_gets_new_columns(tmp_path):
    for kind, name in ((CsvFile, "a.csv"), (JsonLines, "a.jsonl")):
        for k in range(2):
            target = kind(tmp_path / name)
            target.log(2 * k, {"step_s": 0.5})
            target.log(2 * k + 1, {"step_s": 0.5, f"own{k}": 7.0})
            target.close()
        rows = read_rows(tmp_path / name)
        assert [row["step"] for row in rows] == [0, 1, 2, 3]
        assert (rows[1]["own0"], rows[3]["own1"]) == (7.0, 7.0)
        assert "own0" not in rows[3]


def test_a_file_that_cannot_be_rewritten_keeps_its_rows(tmp_path, monkeypatch):
    target = CsvFile(tmp_path / "a.csv")
    target.log(1, {"step_s": 0.5})

    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr("pliant.metrics.files.write_atomically", refuse)
    with pytest.raises(OSError, match="no space left"):
        target.log(2, {"step_s": 0.5, "own": 7.0})
    assert [row["step"] for row in read_rows(tmp_path / "a.csv")] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_points_of_opentelemetry_that_were_taken_keep_their_plan(monkeypatch):
    """Its SDK holds the attributes of a point as they were given, until it sends the point."""
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", types.ModuleType("opentelemetry.metrics"))
    held = []
    gauge = types.SimpleNamespace(set=lambda value, attributes: held.append((value, attributes)))
    target = OpenTelemetry(types.SimpleNamespace(create_gauge=lambda name, unit: gauge))
    for step, plan in ((1, "onebit"), (2, "bf16")):
        target.log(step, {"plan": plan})
    assert held == [(1.0, {"plan": "onebit"}), (2.0, {"plan": "bf16"})]


class StandInOfWandB:
    """Rows by steps that only go up: an explicit one below is refused, and one without takes the present one."""

    step = 0

    def __init__(self):
        self.rows = {}

    def define_metric(self, *_, **__): ...

    def log(self, values, step=None):
        assert step is None or step >= self.step, "W&B leaves this row out"
        self.step = self.step if step is None else step
        self.rows.setdefault(self.step, {}).update(values)
        self.step += step is None


@pytest.mark.parametrize("first", [0, 1, None])
def test_rows_in_wandb_do_not_get_ahead_of_a_loop_that_counts_its_steps(first, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    run = StandInOfWandB()
    target = WandB(run)
    for k in range(4):
        target.log(k + 1, {"step_s": 0.5})
        run.log({"loss": k}, *(() if first is None else (k + first,)))
    assert [row["pliant/step"] for row in run.rows.values() if "pliant/step" in row] == [1, 2, 3, 4]
    assert [row["loss"] for row in run.rows.values() if "loss" in row] == [0, 1, 2, 3]


def test_rows_in_wandb_are_all_kept_where_nobody_else_logs(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    run = StandInOfWandB()
    target = WandB(run)
    for k in range(3):
        target.log(k + 1, {"step_s": 0.5})
    assert [row["pliant/step"] for row in run.rows.values()] == [1, 2, 3]


@needs("tensorboard", "tensorboard")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sent_bytes = train(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sum(event.value for event in events.Scalars("pliant/sent_bytes")) == sent_bytes
    assert [event.step for event in events.Scalars("pliant/loss")] == [1, 2, 3, 4]
    assert b"onebit" in events.Tensors("pliant/plan/text_summary")[0].tensor_proto.string_val[0]


@needs("mlflow", "mlflow-skinny")
def test_mlflow(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer ones ask for, and sqlite instead
    uri = tmp_path.as_uri()
    client = MlflowClient(uri)
    run_id = client.create_run(client.create_experiment("tests")).info.run_id
    sent_bytes = train(MLflow(run_id, tracking_uri=uri))
    assert sum(each.value for each in client.get_metric_history(run_id, "pliant/sent_bytes")) == sent_bytes
    assert client.get_run(run_id).data.tags["pliant/plan"] == "onebit"


def records(path):
    """Yield the records of W&B's offline file: LevelDB's log format, after a header of 7 bytes."""
    content, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # too little of the block is left for the head of a record
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if at + 7 + size > len(content):  # not written to its end yet
            return
        held += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield held
            held = b""


@needs("wandb", "wandb")
def test_wandb_offline(tmp_path):
    import wandb
    from wandb.proto import wandb_internal_pb2

    with wandb.init(mode="offline", dir=str(tmp_path), project="tests") as opened:
        sent_bytes = train(WandB(opened))
    file = next(tmp_path.rglob("run-*.wandb"))

    def written():
        return [wandb_internal_pb2.Record.FromString(data) for data in records(file)]

    # W&B's own process may write on when the run has finished; the record of its exit is the last.
    until(lambda: any(record.HasField("exit") for record in written()), lambda: written()[-1:])
    rows = []
    for record in written():
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    assert [row["pliant/step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["pliant/sent_bytes"] for row in rows) == sent_bytes


@needs("prometheus_client", "prometheus-client")
def test_prometheus():
    from prometheus_client import CollectorRegistry, generate_latest

    registry, texts = CollectorRegistry(), []

    class Looking(Prometheus):
        def close(self):
            texts.append(generate_latest(registry).decode())
            super().close()

    sent_bytes = train(lambda: Looking(registry=registry))
    lines = texts[0].splitlines()
    assert f"pliant_sent_bytes {sent_bytes / STEPS}" in lines
    assert 'pliant_plan_info{plan="onebit"} 1.0' in lines
    assert f"pliant_step {float(STEPS)}" in lines
    assert any(line.startswith("pliant_step_seconds ") for line in lines)
    assert generate_latest(registry) == b""


@needs("opentelemetry.sdk" if find_spec("opentelemetry") else "opentelemetry", "opentelemetry-sdk")
def test_opentelemetry():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    sent_bytes = train(OpenTelemetry(MeterProvider([reader]).get_meter("pliant")))
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    points = {metric.name: metric.data.data_points[0] for metric in metrics}
    assert points["pliant.sent_bytes"].value == sent_bytes / STEPS
    assert points["pliant.step"].value == STEPS
    assert dict(points["pliant.step_s"].attributes) == {"plan": "onebit"}
