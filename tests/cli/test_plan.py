"""`pliant plan` finds what pays on a network that is not there, and writes it for relax()."""

import json

import pytest

from pliant.cli.plan import plan as plan_command
from pliant.spec import SyncPlan, load


def call(rate: str, **options) -> None:
    plan_command("vgg16", hosts=4, rate=rate, compute="140ms", candidates=40, **options)


def test_exact_plans_alone_unless_more_is_allowed(tmp_path, capsys):
    call("1gbit", out=tmp_path / "plan.json", json_file=tmp_path / "all.json")
    assert "predicted: a step of" in capsys.readouterr().out
    plan = load(SyncPlan, tmp_path / "plan.json")
    assert all(rule.choice.codec is None or rule.choice.codec.name == "bf16" for rule in plan.rules)
    assert "pliant plan" in plan.provenance
    rows = json.loads((tmp_path / "all.json").read_text())
    times = [row["to_accuracy_s"] for row in rows]
    assert times == sorted(times)
    assert rows[0]["plan"]["rules"] == json.loads((tmp_path / "plan.json").read_text())["rules"]


def test_on_a_slow_network_with_a_budget_it_sends_less(tmp_path):
    exact, relaxed = tmp_path / "exact.json", tmp_path / "relaxed.json"
    call("100mbit", json_file=exact)
    call("100mbit", quality=1.3, json_file=relaxed, trace=tmp_path / "trace.json")
    first, second = (json.loads(path.read_text())[0]["to_accuracy_s"] for path in (exact, relaxed))
    assert second < 0.5 * first
    assert json.loads((tmp_path / "trace.json").read_text())


def test_the_same_seed_finds_the_same_plan(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        call("1gbit", quality=1.3, seed=5, out=path)
    assert paths[0].read_text() == paths[1].read_text()


def test_a_budget_below_exact_is_refused():
    with pytest.raises(ValueError, match="fewer steps than exact"):
        call("1gbit", quality=0.9)
