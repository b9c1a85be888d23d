"""The verdict: what it says in each state, and that it survives the way through its file."""

import json

import pytest

from pliant.algorithms.by_name import plan_of_text
from pliant.attachment.launch import read_verdict
from pliant.attachment.verdict import QUALITIES, RunOptions, RunVerdict
from pliant.cli.run import _tell
from pliant.spec import SyncPlan, load, to_json

HELPED = {
    "how": "DDP",
    "quality": "1%",
    "optimizer": "SGD",
    "num_ranks": 4,
    "num_steps": 200,
    "baseline_step_s": 1.2,
    "step_s": 0.2,
    "steps_ratio": 1.06,
    "waited_s": 0.05,
    "sent_bytes": 2e5,
    "baseline_sent_bytes": 1.8e7,
    "search_s": 40.0,
    "search_steps": 60,
    "decided": True,
    "plan": {"rules": []},
    "plan_text": "LowRank",
    "line": 'run = pliant.relax(model, optimizer, "powersgd")',
    "explanation": "It was tried.\nAnd more.",
    "frontier_text": "Frontier: three lines",
}


def test_the_speed_up_is_the_ratio_of_steps_times_over_that_of_steps():
    verdict = RunVerdict(**HELPED)
    assert verdict.steps_speedup == pytest.approx(6)
    assert verdict.speedup == pytest.approx(6 / 1.06)
    body = json.loads(verdict.as_json())
    assert body["speedup"] == verdict.speedup
    assert body["verdict"] == verdict.sentence
    assert {"step_s", "baseline_step_s", "steps_ratio", "plan", "frontier"} <= body.keys()


def test_in_plain_words_it_says_what_a_step_took_waited_and_sent_and_what_to_paste():
    text = RunVerdict(**HELPED).text()
    for part in (
        "Verdict: 5.66x sooner to DDP's loss: a step takes 200ms instead of 1.2s (6.00x), ",
        "counting 1.06 times the steps.",
        "DDP alone: a step takes 1.2s, and sends 18MB per rank (4 ranks, SGD)",
        "with Pliant: a step takes 200ms, waits 50ms, sends 200KB",
        "the search took 40s, in which 60 steps were made",
        "chosen (quality 1%): LowRank",
        "why: It was tried.",
        "Frontier: three lines",
        'Line to paste: run = pliant.relax(model, optimizer, "powersgd")',
    ):
        assert part in text
    assert "And more." not in text


def test_a_script_that_fails_with_its_plan_is_told_so_too(tmp_path):
    RunVerdict(**HELPED).save(tmp_path)
    told = read_verdict(tmp_path, status=3).sentence
    assert told.startswith("The script ended with exit status 3. 5.66x sooner to DDP's loss")
    assert read_verdict(tmp_path, status=0).sentence.startswith("5.66x sooner")


def test_without_a_plan_it_says_why_and_offers_no_line():
    verdict = RunVerdict(
        **{**HELPED, "plan": None, "line": "", "reason": "Pliant does not help here: it is 1.01.", "step_s": 1.21}
    )
    assert verdict.sentence == "Pliant does not help here: it is 1.01."
    assert "after the decision: a step takes 1.21s" in verdict.text()
    assert "Line to paste" not in verdict.text()


def test_a_plan_of_an_earlier_run_does_not_pass_for_one_of_this(tmp_path, capsys):
    """Without a decision nobody knows better than the earlier run."""
    out = tmp_path / "plan.json"
    plan = json.loads(to_json(plan_of_text("onebit")))
    _tell(RunVerdict(**{**HELPED, "plan": None, "decided": True}), out, None)
    assert capsys.readouterr().err.count("plan.json") == 0
    _tell(RunVerdict(**{**HELPED, "plan": plan}), out, None)
    assert load(SyncPlan, out) == plan_of_text("onebit")
    _tell(RunVerdict(**{**HELPED, "plan": None, "decided": False}), out, None)
    assert "plan.json is still that of an earlier run" in capsys.readouterr().err
    assert out.exists()
    _tell(RunVerdict(**{**HELPED, "plan": None, "decided": True}), out, None)
    assert "plan.json, of an earlier run, was removed" in capsys.readouterr().err
    assert not out.exists()


def test_a_script_that_ends_before_the_decision_is_told_so():
    verdict = RunVerdict(how="DDP", num_ranks=2, baseline_step_s=0.1)
    assert "ended before a plan was chosen" in verdict.sentence
    assert verdict.speedup is None


def test_records_survive_their_files(tmp_path):
    assert RunVerdict.load(tmp_path) is None
    verdict, options = RunVerdict(**HELPED), RunOptions(quality="fast", unmeasured=True, plan_file="plan.json")
    verdict.save(tmp_path)
    options.save(tmp_path)
    assert RunVerdict.load(tmp_path) == verdict
    assert RunOptions.load(tmp_path) == options


def test_a_quality_is_one_of_three_words():
    assert [RunOptions(quality=word).budget for word in QUALITIES] == [1.0, 1.1, 1.5]
    with pytest.raises(ValueError, match="--quality is 'best', but it can be exact, 1%, fast"):
        RunOptions(quality="best")
