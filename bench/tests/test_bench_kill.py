"""Losses: which they are, what is made of what ranks say, and a small run that is resumed."""

import json
from dataclasses import asdict

import pytest
import typer
from typer.testing import CliRunner

import pliant
from pliant_bench.faults.outcome import describe, read_diary
from pliant_bench.faults.points import ELASTIC_ARMS, Point, is_elastic, points_left, points_of, records_of
from pliant_bench.faults.tables import is_expected, kill_tables
from pliant_bench.harness.arms import prepare
from pliant_bench.harness.command import bench
from pliant_bench.harness.names import PLIANT_ARMS
from pliant_bench.harness.setup import Setup
from pliant_bench.models import Cnn
from pliant_bench.tables.report import page
from pliant_bench.tables.text import markdown
from tables import sampled


def _bench(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    return CliRunner().invoke(app, arguments)


def test_points_do_not_depend_on_how_many_there_are_and_reach_every_arm():
    many = points_of(PLIANT_ARMS, 100, 4, 60)
    assert many[:10] == points_of(PLIANT_ARMS, 10, 4, 60)
    assert points_of(PLIANT_ARMS, 10, 4, 60, seed=1) != many[:10]
    assert {point.arm for point in many} == set(PLIANT_ARMS)
    assert sum(is_elastic(point.arm) for point in many) == 50
    assert {point.victim for point in many} == set(range(4))
    assert all(0 <= point.moment <= 36 for point in many)
    assert 20 <= sum(point.signal == "STOP" for point in many) <= 46
    assert any(point.back_s for point in many)
    assert not any(point.back_s for point in many if not is_elastic(point.arm))
    assert not any(point.rank_hosts_store for point in many if is_elastic(point.arm))
    assert any(point.rank_hosts_store for point in many)


@pytest.mark.parametrize("arm", sampled(PLIANT_ARMS))
def test_arms_that_go_on_are_those_whose_plans_can(arm):
    """Held against what relax() itself refuses."""

    def body(place):
        module = Cnn()
        with pytest.MonkeyPatch.context() as patch:  # the arm, in a world of one thread
            relax = pliant.relax
            patch.setattr(pliant, "relax", lambda *a, **k: relax(*a, group=place.process_group, **k))
            made = prepare(arm, module, 0.01, 10, 25.0, timeout_s=10, elastic=pliant.Elastic())
        made.close()

    if is_elastic(arm):
        pliant.run_world(1, body)
    else:
        with pytest.raises(ValueError, match="an elastic run needs a plan whose ranks exchange weights"):
            pliant.run_world(1, body)
    assert is_elastic(arm) == (arm in ELASTIC_ARMS)
    assert not is_elastic("after(5, bf16, then=onebit)")


def _steps(*at_s):
    return [{"kind": "step", "at_s": at, "step": k + 1} for k, at in enumerate(at_s)]


def _diaries_of_a_loss():
    before = [float(k) for k in range(10)]
    regrouped = {"kind": "regrouped", "at_s": 15.0}
    survivor = [*_steps(*before), regrouped, *_steps(15.2, 15.7, 16.2)]
    slower = [*_steps(*before), regrouped, *_steps(15.4, 15.9), {"kind": "judged", "at_s": 17.0, "accuracy": 0.8}]
    victim = [*_steps(*before[:9]), *_steps(20.5)]
    return {0: survivor, 1: victim, 2: slower}


def test_the_slowest_survivor_says_how_long_it_took():
    found = describe(_diaries_of_a_loss(), {0: 0, 1: 0, 2: 0}, victim=1, struck_s=9.5, back_s=18.0)
    assert (found["outcome"], found["back"], found["accuracy"]) == ("went on", "joined", 0.8)
    assert found["next_step_s"] == pytest.approx(5.9)
    assert found["standstill_s"] == pytest.approx(6.4)
    assert found["joined_s"] == pytest.approx(2.5)
    assert (found["step_before_s"], found["step_after_s"]) == (1.0, 0.5)


def _failed(at_s, text, error="CommError"):
    return [{"kind": "failed", "at_s": at_s, "error": error, "text": text}]


def test_the_lost_rank_is_named_or_it_is_not():
    diaries = {0: _failed(3.0, "rank 0 of 3: x failed: rank 1, 2 is gone (no sign)"), 1: [], 2: _failed(4.0, "time")}
    found = describe(diaries, {0: 1, 2: 1}, victim=1, struck_s=1.0, back_s=None)
    assert (found["outcome"], found["ended_s"], found["named_by"]) == ("ended", 3.0, 1)
    assert not is_expected({"arm": "bytegrad", **found})
    diaries[2] = _failed(4.0, "rank 2 of 3: rank 1 no longer takes part in the exchange with owners: so")
    found = describe(diaries, {0: 1, 2: 1}, victim=1, struck_s=1.0, back_s=None)
    assert is_expected({"arm": "stale", **found})
    assert not is_expected({"arm": "gossip", **found})
    hung = describe(diaries, {0: 1, 2: None}, victim=1, struck_s=1.0, back_s=None)
    assert hung["outcome"] == "hung"
    assert describe(diaries, {0: 1, 2: 0}, victim=1, struck_s=1.0, back_s=None)["outcome"] == "mixed"


def test_who_comes_back_when_all_is_over_is_told_so():
    diaries = {0: _steps(1.0), 1: _failed(9.0, "rank 1 has come too late: the elastic run has ended.")}
    found = describe(diaries, {0: 0, 1: 1}, victim=1, struck_s=2.0, back_s=8.0)
    assert (found["outcome"], found["back"], found["joined_s"]) == ("went on", "too late", None)


def test_half_a_line_is_not_read(tmp_path):
    path = tmp_path / "0.jsonl"
    assert read_diary(path) == []
    path.write_text('{"kind": "begun", "at_s": 1.0}\n{"kind": "st')
    assert read_diary(path) == [{"kind": "begun", "at_s": 1.0}]


def _record(point, **found):
    diaries = _diaries_of_a_loss()
    described = describe(diaries, {0: 0, 1: 0, 2: 0}, victim=1, struck_s=9.5, back_s=18.0)
    return {"kind": "kill", **asdict(point), **described, "stacks": {}, **found}


def test_the_tables_say_what_was_not_as_it_should_be():
    gossip, onebit, topk = points_of(("gossip", "onebit", "topk"), 4, 4, 60)[:2] + points_of(("topk",), 1, 4, 60)
    failed = {"0": "CommError: rank 0 of 4: rank 1 is gone (no sign of life)"}
    ended = {"outcome": "ended", "ended_s": 3.0, "named_by": 1, "failed": failed, "back": None}
    hung = {"outcome": "hung", "failed": {}, "back": None, "ended_s": None}
    records = [
        {"kind": "undisturbed", "arm": "gossip", "accuracy": 0.75, "outcome": "went on"},
        _record(gossip),
        _record(onebit, **ended),
        _record(topk, **hung),
    ]
    on, end, wrong = kill_tables(records)
    assert on[2][0][-6:] == ["5.9 (5.9)", "6.4 (6.4)", "1 of 1", "2.5 (2.5)", "0.50x", "+5.0 (+5.0 to +5.0)"]
    assert [row[-1] for row in end[2]] == ["1 of 1", "0 of 1", "1 of 2"]
    assert [row[1] for row in wrong[2]] == ["topk"]
    setup = asdict(Setup(mode="kill", models=("cnn",), arms=(), provenance={"command": "c"}))
    result = {"setup": setup, "records": records}
    assert "| 0 | topk |" in markdown(result)
    assert "a rank is lost, and the others go on" in page(result)


def test_a_point_that_is_in_the_file_is_not_struck_again(tmp_path):
    setup = Setup(mode="kill", models=("cnn",), arms=("gossip", "onebit"), num_points=3)
    points = points_of(setup.arms, 3, 4, 60)
    path = tmp_path / "k.json"
    assert records_of(path, setup, 4) == []
    path.write_text(json.dumps({"setup": asdict(setup), "hosts": 4, "records": [{"kind": "kill", "number": 1}]}))
    assert points_left(points, records_of(path, setup, 4)) == [points[0], points[2]]
    with pytest.raises(ValueError, match="their points cannot stand side by side"):
        records_of(path, setup, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kill", "2"], "add --local"),
        (["--kill", "2", "--local", "--grid"], "--kill trains in its own way"),
        (["--kill", "-1", "--local"], "--kill is -1"),
        (["--kill", "2", "--local", "--algorithms", "ddp,gossip"], "but ddp is not Pliant's"),
        (["--kill", "2", "--local", "--task", "lm"], "--kill trains cnn on images"),
        (["--kill", "2", "--local", "--hosts", "1"], "when one is lost others must be there"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    assert sentence in str(_bench(*arguments).exception)


@pytest.mark.extended
@pytest.mark.processes
def test_a_rank_is_lost_for_real_and_the_rest_is_done_later(tmp_path):
    arguments = ["--local", "--hosts", "3", "--algorithms", "local_sgd,bytegrad", "--steps", "20"]
    arguments += ["--json", str(tmp_path / "k.json")]
    done = _bench("--kill", "1", *arguments)
    assert done.exit_code == 0, done.output
    done = _bench("--kill", "2", *arguments, "--md", str(tmp_path / "k.md"))
    assert done.exit_code == 0, done.output
    records = json.loads((tmp_path / "k.json").read_text())["records"]
    assert [(r["kind"], r["arm"]) for r in records] == [
        ("undisturbed", "local_sgd"),
        ("kill", "local_sgd"),
        ("kill", "bytegrad"),
    ]
    assert all(is_expected(r) for r in records[1:]), records
    assert "a rank is lost, and the others end" in (tmp_path / "k.md").read_text()


def test_a_point_is_what_it_is():
    point = points_of(("onebit",), 1, 4, 60)[0]
    assert Point(**json.loads(json.dumps(asdict(point)))) == point
