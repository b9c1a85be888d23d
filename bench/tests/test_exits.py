"""Processes that end without `close()`, and what stays of many runs: a sample of benchmarks/lifecycle."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "lifecycle"))

from exits import WAYS, Trial, carry_out, draw
from leaks import PLAIN, measure, stays

pytestmark = pytest.mark.processes

EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("way", "algorithm"),
    [
        pytest.param("sys.exit(7) after backward", "onebit", marks=EXTENDED),
        ("SIGINT in backward", "stale"),
        pytest.param("end of script", "local_sgd", marks=EXTENDED),
        pytest.param("error", "owner", marks=EXTENDED),
        pytest.param("forked processes came and went", "gossip", marks=EXTENDED),
        pytest.param("loader's processes live", "choco", marks=EXTENDED),
        pytest.param("one rank leaves", "diloco", marks=EXTENDED),
        pytest.param("two runs", "topk", marks=EXTENDED),
        pytest.param("world destroyed first", "async_average", marks=EXTENDED),
    ],
)
def test_ranks_end_as_their_script_does(way, algorithm):
    record = carry_out(Trial(seed=0, number=0, way=way, algorithm=algorithm, steps=3))
    assert record["statuses"] == WAYS[way], record["said"]
    assert record["passed"], record["said"]


def test_trials_are_those_of_the_file():
    file = Path(__file__).parents[2] / "benchmarks" / "lifecycle" / "exits_seed1.jsonl"
    trials = draw(1, 200)
    assert len({(each.way, each.algorithm) for each in trials}) > 150
    assert file.read_text().count("\n") == 200
    assert trials[:3] == [Trial(**json.loads(line)) for line in file.read_text().splitlines()[:3]]


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["cycles", "steps"])
def test_nothing_stays(kind):
    assert stays(measure("local_sgd", kind), measure(PLAIN, kind)) == []


def test_what_grows_is_found_and_what_jumps_once_is_not():
    flat = [{"resident": 10**8 + (k % 2) * 40_000, "tensors": 100, "threads": 5, "files": 9} for k in range(50)]
    plain = {"looks": [[{**look, "resident": look["resident"] + 1000 * k} for k, look in enumerate(flat)]]}
    assert stays({"looks": [flat, flat]}, plain) == []
    for name, more in (("resident", 20_000), ("tensors", 8), ("threads", 1), ("files", 1)):
        grows = [{**look, name: look[name] + more * k} for k, look in enumerate(flat)]
        assert stays({"looks": [flat, grows]}, plain) == [name]
    for at in (5, 20, 33, 47):
        jumps = [{**look, "resident": look["resident"] + 10**6 * (k > at)} for k, look in enumerate(flat)]
        assert stays({"looks": [jumps]}, plain) == []
    assert stays(plain, plain) == []
    slow = [{**look, "files": look["files"] + k // 10} for k, look in enumerate(flat)]
    assert stays({"looks": [slow, flat]}, plain) == ["files"]
    closing = [{**look, "files": look["files"] + (k > 25 and k % 5 == 0)} for k, look in enumerate(flat)]
    assert stays({"looks": [closing, flat]}, plain) == []
