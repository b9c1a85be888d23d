"""`pliant bench --model module:function`: on processes of this machine, and by torchrun."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from pliant_bench.harness.command import bench

OWN = """
import torch
import torch.distributed as dist
from torch import nn

def make():
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(1 + dist.get_rank())
    def batch(step):
        x = torch.randn(32, 20, generator=g)
        return x, (x[:, 0] > 0).long()
    held_out = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
    def metric(model):
        assert not model.training and not torch.is_grad_enabled()
        return (model(held_out).argmax(1) != (held_out[:, 0] > 0)).float().mean()
    return model, optimizer, batch, nn.CrossEntropyLoss(), metric
"""
NUMEL = 20 * 30 + 30 + 30 * 2 + 2


def _bench(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "own_bench.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.extended
@pytest.mark.processes
def test_steps_of_an_own_model_are_timed(here):
    done = _bench("--model", "own_bench:make", "--algorithms", "compute,ddp,bytegrad", "--hosts", "2", "--local",
                  "--steps", "2", "--json", "r.json", "--html", "r.html")  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    found = {r["arm"]: r for r in json.loads((here / "r.json").read_text())["records"]}
    assert list(found) == ["compute", "ddp", "bytegrad"]
    assert all(r["model"] == "own_bench:make" and r["numel"] == NUMEL for r in found.values())
    assert found["ddp"]["sent_bytes"] == 4 * NUMEL
    assert "step times, your data" in done.output
    assert "Your data." in (here / "r.html").read_text()


@pytest.mark.processes
@pytest.mark.extended
def test_an_own_model_is_trained_to_its_metric_and_timed_in_cells(here):
    own = ["--model", "own_bench:make", "--hosts", "2", "--local"]
    done = _bench(
        *own, "--target-loss", "0.1", "--algorithms", "ddp-bf16,local_sgd", "--steps", "80", "--json", "r.json"
    )
    assert done.exit_code == 0, (done.output, done.exception)
    runs = [r for r in json.loads((here / "r.json").read_text())["records"] if r["kind"] == "train"]
    assert [r["arm"] for r in runs] == ["ddp-bf16", "local_sgd"]
    assert all(r["final_loss"] < 0.1 and r["time_to_target_s"] > 0 for r in runs)
    grid = ["--grid", "--rates", "none", "--delays", "0ms", "--algorithms", "onebit", "--accuracy", "r.json"]
    done = _bench(*own, *grid, "--json", "grid.json")
    assert done.exit_code == 0, (done.output, done.exception)
    (cell,) = json.loads((here / "grid.json").read_text())["records"]
    assert cell["model"] == "own_bench:make"
    assert set(cell["arms"]) == {"compute", "ddp", "ddp-bf16", "onebit"}


def by_torchrun(here, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pliant"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "bench", "--model", "own_bench:make", *arguments],
        env=environment, cwd=here, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.processes
@pytest.mark.extended
def test_under_torchrun_its_ranks_are_the_hosts(here):
    done = by_torchrun(here, "--algorithms", "ddp,onebit", "--steps", "2", "--json", "r.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((here / "r.json").read_text())
    assert result["hosts"] == 2
    assert {r["arm"]: r["sent_bytes"] for r in result["records"]}["ddp"] == 4 * NUMEL
    assert done.stdout.count("2 ranks of torchrun") == 1  # rank 0 alone speaks


@pytest.mark.processes
@pytest.mark.extended
def test_under_torchrun_it_trains_and_a_function_that_fails_is_named(here):
    done = by_torchrun(here, "--target-loss", "0.1", "--algorithms", "ddp", "--steps", "60", "--json", "r.json")
    assert done.returncode == 0, done.stderr
    (run,) = [r for r in json.loads((here / "r.json").read_text())["records"] if r["kind"] == "train"]
    assert run["final_loss"] < 0.1
    (here / "own_bench.py").write_text("def make():\n    return 5\n")
    done = by_torchrun(here, "--algorithms", "ddp")
    assert done.returncode != 0
    assert "own_bench:make returned a int; end the function with" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "cnn"], "--models is given, but --model my:make brings model and data; leave it out"),
        (["--batch", "5"], "--batch is given, but --model my:make brings"),
        (["--demo"], "--demo is given, but --model my:make brings"),
        (["--train"], "--train --model my:make has no target; say which loss"),
        (["--target-accuracy", "0.5"], "--model my:make has another target; --target-accuracy is for images"),
        (["--target-loss", "0.5", "--max-epochs", "2"], "--max-epochs asks how long an epoch is"),
        (["--algorithms", "ddp-adam"], "ddp-adam brings Adam, but my:make has an optimizer of its own"),
        (["--kill", "2", "--local"], "--kill trains a model of the laboratory"),
    ],
)
def test_what_an_own_model_does_not_go_with_is_refused(arguments, sentence):
    assert sentence in str(_bench("--model", "my:make", *arguments).exception)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hosts", "4"], "--hosts is given, but torchrun has started 2 ranks; leave it out"),
        (["--rate", "1gbit"], "--rate is given, but torchrun"),
        (["--local"], "--local is given, but torchrun"),
        (["--grid"], "--grid changes links or loses ranks, but those here are torchrun's"),
        (["--target-loss", "1"], "--task images has another target; --target-accuracy is for images"),
    ],
)
def test_what_torchrun_does_not_go_with_is_refused(arguments, sentence, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    assert sentence in str(_bench(*arguments).exception)
