"""Time to a perplexity over the internet: the list of trials, the journal, the target and the table."""

import importlib
import math
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "local_steps"


@pytest.fixture
def job(monkeypatch):
    """Return the module of the comparison."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    yield importlib.import_module("over_the_internet")
    sys.modules.pop("over_the_internet", None)


def fake(trial, options):
    """Return a trial's result: buckets of 5 MB are best, the recipe takes a third of the time, and high rates fail."""
    if trial["kind"] == "alone":
        return {"train_s": 0.05 * trial["steps"], "perplexity": 20.0, "curve": []}
    if trial["kind"] == "bucket":
        return {"train_s": abs(trial["bucket_mb"] - 5) + 1.0, "perplexity": 20.0, "curve": []}
    step_s = 0.3 if trial["arm"] == "recipe" else 0.9
    worse = 0.1 * abs(math.log2(trial["times"]) - 1) + (0.5 if trial["arm"].startswith("torchft") else 0)
    curve = [[step, step * step_s, math.exp(3 - step / 100 + worse)] for step in range(15, 100, 30)]
    return {"train_s": 100 * step_s, "perplexity": curve[-1][2], "curve": curve}


def test_the_same_command_goes_on_and_the_best_rate_counts(job, monkeypatch, tmp_path, capsys):
    out, made = tmp_path / "lines.jsonl", []
    monkeypatch.setattr(job, "carry_out", lambda trial, options: made.append(trial) or fake(trial, options))
    monkeypatch.setattr(job, "reason_against", lambda trial: "")
    arguments = ["--out", str(out), "--steps", "100", "--size", "0.06M"]
    job.main(arguments)
    assert len(made) == len(out.read_text().splitlines()) == 1 + len(job.BUCKETS_MB) + 3 * len(job.ARMS)
    every_step = [trial for trial in made if trial["arm"] in ("ddp", "two trips") and trial["kind"] == "trained"]
    assert {trial["bucket_mb"] for trial in every_step} == {5}
    told = capsys.readouterr().out
    assert "A step that exchanges nothing takes 0.050 s." in told
    rows = [line.split("|")[1:-1] for line in told.splitlines() if line.startswith("| ")][1:]
    cells = {(row[0].strip(), row[1].strip()): [cell.strip() for cell in row[2:]] for row in rows}
    # 80 % of the last point, 75, is step 75 itself
    assert cells["ddp", "Muon"][:5] == ["2", "0", "0", "100", f"{75 * 0.9:.0f}"]
    assert cells["recipe", "Muon"][:5] == ["2", "5", "3", "100", f"{75 * 0.3:.0f}"]
    assert cells["torchft diloco", "Muon"][4] == "not reached"
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-2]) + lines[-2][:20])  # killed in the midst of a line
    made.clear()
    job.main(arguments)
    assert [trial["times"] for trial in made] == [2.0, 4.0]


def test_what_failed_is_tried_again_and_what_is_missing_is_left_out(job, monkeypatch, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    monkeypatch.setattr(job, "carry_out", lambda trial, options: {"error": "no root"})
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: None)
    job.main(["--out", str(out), "--times", "1"])
    told = capsys.readouterr().out
    assert told.count("failed: no root") == 1 + len(job.BUCKETS_MB) + 3
    assert told.count("left out: torchft is not installed") == 2
    assert not out.exists()


def test_local_steps_may_take_more_steps_and_other_rates(job):
    options = job.options_of(["--out", "F", "--steps", "50", "--longer", "3", "--times", "1", "2", "--ddp-times", "4"])
    trained = [trial for trial in job.listed(options, 5) if trial["kind"] == "trained"]
    assert {(trial["arm"] in job.EVERY_STEP, trial["steps"], trial["times"]) for trial in trained} == {
        *((True, 50, 4.0), (False, 150, 1.0), (False, 150, 2.0))
    }


@pytest.mark.parametrize(
    ("option", "values", "told"),
    [
        ("--judge-every", ["45"], "is 45, and must be a multiple of the period of 30"),
        ("--judge-every", ["0"], "is 0, and must be a multiple of the period of 30"),
        ("--period", ["10", "7"], "is 30, and must be a multiple of the period of 7"),
        ("--delay-steps", ["2", "10"], "is 10: weights are exchanged every 5 steps"),
    ],
)
def test_weights_are_judged_between_exchanges(job, capsys, option, values, told):
    with pytest.raises(SystemExit):
        job.options_of(["--out", "F", option, *values])
    assert told in capsys.readouterr().err


def test_commands_are_ones_that_the_recipe_takes(job, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(_FOLDER.parents[1] / "examples"))
    recipe = importlib.import_module("gpt_internet")
    options = job.options_of(
        ["--out", "F", "--steps", "4", "--size", "0.06M", "--period", "15", "--delay-steps", "5", "--judge-every", "90"]
    )
    for trial in job.listed(options, 5):
        words = job.command(trial, options, tmp_path)
        given = recipe.parsed(words[words.index("--") + 3 :])
        assert (given.steps, given.size, given.optimizer) == (4, "0.06M", trial["optimizer"])
        assert given.judge_every == (90 if trial["kind"] == "trained" else 0)
        assert ("period=15" in given.plan and "delay_steps=5" in given.plan) == (trial["arm"] == "recipe")
        assert words[words.index("--") + 2].endswith(
            "internet_torchft.py" if "torchft" in trial["arm"] else "gpt_internet.py"
        )


def test_an_idle_connection_begins_slowly_unless_told_otherwise(job, tmp_path):
    for extra, no_restart in (((), False), (("--no-idle-restart",), True)):
        options = job.options_of(["--out", "F", *extra])
        for trial in job.listed(options, 5):
            assert ("--no-idle-restart" in job.command(trial, options, tmp_path)) is no_restart
            assert trial["idle_restart"] is not no_restart


def test_the_recipe_may_have_another_plan(job, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(_FOLDER.parents[1] / "examples"))
    recipe = importlib.import_module("gpt_internet")
    plan = "muloco(fragments=3, delay_steps=8, averaging=int4)"
    options = job.options_of(["--out", "F", "--plan", plan, "--times", "1"])
    for trial in job.listed(options, 5):
        words = job.command(trial, options, tmp_path)
        given = recipe.parsed(words[words.index("--") + 3 :])
        assert (given.plan == plan) == (trial["plan"] == plan) == (trial["arm"] == "recipe")


def test_a_target_below_the_curve_is_not_reached(job):
    curve = [(15, 10.0, 20.0), (45, 20.0, 10.0)]
    assert job.time_to(25.0, curve) == 10.0
    assert job.time_to(9.0, curve) == math.inf
    assert job.time_to(math.sqrt(200), curve) == pytest.approx(15.0)
