"""The page of a run: of a file that is being written, that is finished, or that is none."""

import json

import pytest

from cli import inside
from pliant.cli.watch import summary
from pliant.metrics import CsvFile, JsonLines


def rows(count=10, *, period_s=30.0, **more):
    return [
        {"step": k, "unix_s": period_s * k, "step_s": 2.0, "exposed_s": 0.5, "sent_bytes": 1000.0 * k, **more}
        for k in range(count)
    ]


def test_figures_are_those_of_the_last_minute():
    found = summary(rows())
    assert found["sent_bytes"] == 8000.0, "of steps 7, 8 and 9"
    assert (found["step"], found["step_s"], found["exposed_s"]) == (9, 2.0, 0.5)
    assert summary([]) == {}


def test_one_long_pause_is_no_long_step():
    given = rows(9, period_s=5.0)
    given[4]["step_s"] = 500.0
    assert summary(given)["step_s"] == 2.0


def test_the_plan_is_the_last_that_was_named():
    given = rows()
    given[0]["plan"], given[3]["plan"] = "onebit", "bf16"
    assert summary(given)["plan"] == "bf16"


def test_losses_are_means_by_minute():
    given = [{**row, "loss": float(k)} for k, row in enumerate(rows(4))]
    assert summary(given)["loss"] == [0.5, 2.5, 3.0]


@pytest.mark.parametrize("kind", [CsvFile, JsonLines])
def test_a_finished_file_and_a_folder_are_shown_once(kind, tmp_path):
    name = {CsvFile: "run.csv", JsonLines: "run.jsonl"}[kind]
    target = kind(tmp_path / name)
    for k in range(3):
        plan = {"plan": "onebit"} if k == 0 else {}
        target.log(
            k + 1, {"step_s": 3.0, "exposed_s": 0.3, "sent_bytes": 2e6, "bytes_vs_ddp": 1 / 29, "loss": 1.5, **plan}
        )
    target.close()
    for path in (tmp_path, tmp_path / name):
        done = inside.run("watch", path, "--once", "--json", tmp_path / "figures.json")
        assert done.returncode == 0
        for told in ("onebit", "3s", "300ms (10%)", "2MB", "29x the bytes", "1.5", "last row"):
            assert told in done.stdout, (told, done.stdout)
        figures = json.loads((tmp_path / "figures.json").read_text())
        (tmp_path / "figures.json").unlink()
        assert (figures["step"], figures["step_s"], figures["loss"]) == (3, 3.0, [1.5, 1.5])


def test_losses_that_are_not_finite_are_shown_and_are_null_for_programs(tmp_path):
    log, figures = tmp_path / "run.jsonl", tmp_path / "figures.json"
    losses = (2.0, float("nan"), 1.0, float("inf"), float("nan"))
    given = [{**row, "loss": loss} for row, loss in zip(rows(5, period_s=60.0), losses, strict=True)]
    log.write_text("".join(json.dumps(row) + "\n" for row in given))
    done = inside.run("watch", log, "--once", "--json", figures)
    assert done.returncode == 0, done.stderr
    assert "nan   █×▁××  by minute" in done.stdout

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(figures.read_text(), parse_constant=refuse)["loss"] == [2.0, None, 1.0, None, None, None]


def test_a_value_that_was_last_logged_long_ago_is_shown_without_bars(tmp_path):
    given = rows(3, period_s=3600.0)
    given[0]["accuracy"], given[1]["accuracy"] = "none yet", 0.75
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    done = inside.run("watch", tmp_path, "--once")
    assert done.returncode == 0, done.stderr
    assert "0.75" in done.stdout


def test_a_line_that_is_half_written_is_left_for_later(tmp_path):
    target = JsonLines(tmp_path / "run.jsonl")
    target.log(1, {"step_s": 1.0})
    target.close()
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write('{"step": 2, "ste')
    assert "1s" in inside.run("watch", tmp_path, "--once").stdout


@pytest.mark.parametrize(
    ("name", "content", "arguments", "sentence"),
    [
        ("run.csv", None, (), "is not there; name the file that the run logs to"),
        ("run.csv", "a,b\n1,2\n", (), "its first line names no column step"),
        ("run.jsonl", "{}\n", (), "it has lines without a step"),
        ("run.csv", "step,step_s\n,1.5\n", (), "it has lines without a step"),
        ("run.jsonl", "nonsense\n", (), "cannot be read as a log of run.log_to()"),
        ("run.csv", "step\n", ("--refresh", "0"), "time must pass between two looks"),
        ("", None, (), "holds no .csv and no .jsonl"),
    ],
)
def test_what_is_no_log_is_said_in_one_sentence(name, content, arguments, sentence, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    done = inside.run("watch", tmp_path / name, "--once", *arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())


def test_a_run_without_a_step_is_said_so(tmp_path):
    (tmp_path / "run.csv").write_text("step,unix_s\n")
    assert "no step was logged yet" in inside.run("watch", tmp_path, "--once").stdout
