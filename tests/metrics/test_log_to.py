"""Rows that a run logs, and the sentence that it says of itself."""

import dataclasses
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant import metrics
from pliant.engine.step_meter import Counts, StepPace


class Kept:
    """A target in memory."""

    def __init__(self):
        self.rows, self.closed = [], False

    def log(self, step, values):
        self.rows.append((step, values))

    def close(self):
        self.closed = True


class Full(Kept):
    def log(self, step, values):
        raise OSError("no space left on device")


def train(steps, what="onebit", *, between=lambda run, k: None, **options):
    """Train 2 ranks, each with a target of its own; return targets and what the ranks say of themselves."""
    targets = [Kept(), Kept()]

    def rank(context):
        model = DistributedDataParallel(torch.nn.Linear(64, 64), process_group=context.process_group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, what) as run:
            run.log_to(targets[context.rank], **options)
            for k in range(steps):
                between(run, k)
                x = torch.randn(4, 64, generator=torch.Generator().manual_seed(k))
                model(x).square().mean().backward()
                optimizer.step()
            return run.stats(), str(run)

    return targets, pliant.run_world(2, rank)


def test_the_first_rank_writes_unless_all_are_asked():
    targets, _ = train(3)
    assert [len(target.rows) for target in targets] == [3, 0]
    targets, _ = train(3, all_ranks=True)
    assert [len(target.rows) for target in targets] == [3, 3]
    assert all(target.closed for target in targets)


def test_rows_of_several_steps_hold_means_and_the_last_row_the_rest():
    """Together they hold all that was sent."""
    (target, _), ((stats, _), _) = train(7, every=3)
    assert [step for step, _ in target.rows] == [3, 6, 7]
    sent = [values["sent_bytes"] * steps for (_, values), steps in zip(target.rows, (3, 3, 1), strict=True)]
    assert sum(sent) == pytest.approx(stats["sent_bytes"])


def test_norms_of_residuals_come_when_asked_for():
    (target, _), _ = train(6, pliant.topk(ratio=0.1))
    assert not any("residual_norm" in values for _, values in target.rows)
    (target, _), ((stats, _), _) = train(6, pliant.topk(ratio=0.1), residual_every=3)
    assert [step for step, values in target.rows if "residual_norm" in values] == [3, 6]
    assert target.rows[-1][1]["residual_norm"] == pytest.approx(stats["residual_norm"])


def test_a_switch_is_in_the_row_of_the_step_after_it():
    (target, _), _ = train(5, between=lambda run, k: run.switch("bf16") if k == 3 else None)
    assert [values.get("plan") for _, values in target.rows] == ["onebit", None, None, "bf16", None]
    assert [values["plan_switches"] for _, values in target.rows] == [0, 0, 0, 1, 1]
    assert target.rows[-1][1]["bytes_vs_ddp"] == pytest.approx(0.5, rel=0.01), "of the plan in force"


def test_a_log_that_fails_ends_and_the_training_goes_on():
    def rank(context):
        model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=context.process_group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, "bytegrad") as run:
            run.log_to(Full())
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            return run.steps

    with pytest.warns(UserWarning, match=r"ends here; training goes on \(OSError: no space left on device\)"):
        assert pliant.run_world(2, rank) == [3, 3]


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("run.txt", {}, "ends neither in .csv nor in .jsonl"),
        ("run.csv", {"every": 0}, "a row is of at least 1 step"),
        ("run.csv", {"residual_every": -1}, "residual_every is at least 0"),
    ],
)
def test_bad_logs_are_refused(target, options, sentence, tmp_path):
    def rank(context):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, "gossip", group=context.process_group) as run:
            run.log_to(tmp_path / target, **options)

    with pytest.raises(ValueError, match=sentence):
        pliant.run_world(1, rank)


@pytest.mark.parametrize(
    ("kind", "module", "command"),
    [
        ("TensorBoard", "tensorboard", "pip install tensorboard"),
        ("WandB", "wandb", "pip install wandb"),
        ("MLflow", "mlflow", "pip install mlflow-skinny"),
        ("Prometheus", "prometheus_client", "pip install prometheus-client"),
        ("OpenTelemetry", "opentelemetry.metrics", "pip install opentelemetry-sdk"),
    ],
)
def test_a_missing_library_is_one_line_with_the_command(kind, module, command, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f"^this needs {module}; install it with: {command}$"):
        getattr(metrics, kind)(*["folder"] * (kind == "TensorBoard"))


def said(plan, ddp_bytes, rows):
    pace = StepPace()
    for k, (at_s, exposed_s, sent_bytes) in enumerate(rows):
        pace.note(plan, Counts(at_s, k, k, sent_bytes, 0, exposed_s))
    return pace.sentence(plan, ddp_bytes)


def test_the_sentence_of_a_run():
    plan, name = dataclasses.replace(pliant.partition({"*": pliant.onebit()}), name="mine"), "mine"
    rows = [(3.0 * k, 0.25 * k, 10 * k) for k in range(5)]
    assert said(plan, 290, rows) == f"{name}: a step takes 3s, 250ms of it waiting; DDP would send 29x the bytes."
    assert said(plan, 10, rows) == f"{name}: a step takes 3s, 250ms of it waiting; DDP would send as many bytes."
    assert said(plan, 5, rows) == f"{name}: a step takes 3s, 250ms of it waiting; DDP would send 0.5x the bytes."
    assert said(plan, 0, rows) == f"{name}: a step takes 3s, 250ms of it waiting."
    assert said(plan, 10, rows[:1]) == f"{name}: no two steps were made yet, so nothing was measured."
    nothing = [(at_s, waited_s, 0) for at_s, waited_s, _ in rows]
    assert said(plan, 10, nothing).endswith("waiting; nothing was sent in the last 4 steps.")


def test_an_evaluation_between_two_steps_is_no_step():
    plan = pliant.partition({"*": pliant.onebit()})
    rows = [(3.0 * k + (500.0 if k > 2 else 0.0), 0.0, 10 * k) for k in range(7)]
    assert ": a step takes 3s, 0us of it waiting" in said(plan, 10, rows)


def test_a_run_says_its_sentence():
    _, ((_, sentence), _) = train(4, "bf16")
    assert sentence.startswith("bf16: a step takes ")
    assert sentence.endswith("of it waiting; DDP would send 2x the bytes.")
    _, ((_, sentence), _) = train(4, between=lambda run, k: run.switch("bf16") if k == 3 else None)
    assert sentence == "bf16: no two steps were made yet, so nothing was measured."
