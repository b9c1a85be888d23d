"""The second version of the data set: its list of trials, its rows, what checks them, and its notebook."""

import copy
import importlib
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pliant.algorithms.registry import ALGORITHMS, standard_text
from pliant.spec import TensorSpec, Workload, to_json
from pliant_bench.harness.names import LATER_ARMS

FOLDER = Path(__file__).parents[2] / "benchmarks"
WORKLOAD = Workload(
    name="cnn",
    tensors=tuple(
        TensorSpec(name=f"{k}.weight", shape=(300, 400), dtype="float32", layer="Linear", ready_s=0.01 * k)
        for k in range(3)
    ),
    forward_s=0.01,
    backward_s=0.03,
    step_s=0.001,
)


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/dataset."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
    return lambda name: importlib.import_module(f"dataset.{name}")


@cache
def _committed():
    """Return the tables of the committed data set, with a few rows each."""
    schema = importlib.import_module("dataset.schema")
    found = {name: schema.read(name) for name in schema.FILES}
    runs = {name: found[name][:60] for name in schema.KINDS}
    for name, key in (("models", "model"), ("clusters", "cluster"), ("plans", "plan"), ("sessions", "session")):
        used = {row[key] for rows in runs.values() for row in rows}
        found[name] = [row for row in found[name] if row[key] in used]
    return found | runs


@pytest.fixture
def tables(load):
    """Return a copy of the tables with a few rows each, which a test may spoil."""
    load("schema")
    return copy.deepcopy(_committed())


def _faults(check, tables):
    runs = [row for name in check.KINDS for row in tables[name]]
    checks = (check._columns(tables), check._labels(tables), check._references(tables, runs))
    return [
        fault
        for each in (*checks, check._plans(tables["plans"]), check._times(runs), check._folders(tables))
        for fault in each
    ]


def test_the_committed_data_set_is_sound(load):
    check, schema = load("check"), load("schema")
    assert check.faults() == []
    listed, done = schema.state()
    assert f"{listed - done} are missing" in check.summary()
    assert check.size_of() < check.MOST_BYTES


def test_a_part_of_it_is_sound_for_each_row(load, tables):
    assert _faults(load("check"), tables) == []


SPOILT = {
    "has other columns": lambda t: t["slept"][0].pop("seed"),
    "are labelled measured-slept, not simulated": lambda t: t["simulated"][3].update(kind="measured-slept"),
    "have the status slow": lambda t: t["slept"][1].update(status="slow"),
    "comes twice": lambda t: t["slept"].append(t["slept"][0]),
    "do not name the same rows": lambda t: t["plans"].pop(),
    "is not the hash": lambda t: t["plans"][2].update(json=t["plans"][1]["json"]),
    "its step takes None s": lambda t: t["slept"][2].update(step_s=None),
    "its reason is ''": lambda t: t["slept"][2].update(status="failed", step_s=None),
    "is simulated, but has blocks": lambda t: t["simulated"][2].update(blocks_s=[0.1]),
    "not the median of its blocks": lambda t: t["slept"][2].update(step_s=99.0),
    "has no blocks": lambda t: t["slept"][2].update(blocks_s=[]),
    "names a local folder": lambda t: t["sessions"][0].update(machine="python /home/somebody/collect.py"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_the_checker_finds(load, tables, fault):
    SPOILT[fault](tables)
    assert any(fault in found for found in _faults(load("check"), tables))


def test_the_checker_counts(load, tables, tmp_path):
    check = load("check")
    short = tables | {"slept": tables["slept"][:10]}
    assert any("10 rows slept" in fault for fault in check._counts(short, tmp_path / "no lines"))
    trials = [json.loads(text) for text in load("schema").LIST.read_text().splitlines()]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(trial) + "\n" for trial in trials if trial["kind"] == "trial"))
    found = list(check._counts(tables, lines))
    assert any("rows computed; run benchmarks/dataset/build.py" in fault for fault in found)
    assert any("fewer than 1600 measured" in fault for fault in found)  # all trials have a line, so the floor holds
    assert not any("fewer than 1600 measured" in fault for fault in check._counts(tables, tmp_path / "no lines"))
    assert list(check._card(tables, tmp_path, lines))


def test_the_list_covers_what_was_promised(load):
    trial_list, plans = load("trial_list"), load("plans")
    trials, cells = trial_list.read("trial"), trial_list.read("cell")
    clusters = {c["cluster"]: trial_list.topology_of(c) for c in trial_list.read("cluster")}
    assert sum(trial["fault"] == "" for trial in trials) >= 560
    assert {trial["fault"] for trial in trials} == {"", "refused", "slow", "raises", "lost", "late"}
    assert {cell["optimizer"] for cell in cells} == set(plans.OPTIMIZERS)
    assert len({cell["model"] for cell in cells}) == 8
    assert max(topology.num_ranks for topology in clusters.values()) == 8
    assert sum(c["slow_share"] > 0 for c in trial_list.read("cluster")) >= 2
    assert sum(len(topology.links) >= 6 for topology in clusters.values()) >= 3  # pairs that differ
    assert sum(topology.hosts[0].num_ranks > 1 for topology in clusters.values()) >= 4
    texts = {standard_text(trial["name"]) for trial in trials}
    unnamed = {name for name in ALGORITHMS if not any(name in text.split("(")[0] for text in texts)}
    assert unnamed <= {"bf16", "fp16", "muloco", "pier", *LATER_ARMS}  # bf16 is the control; others came after the list
    for trial in trials:
        assert json.loads(to_json(trial_list.plan_of(trial))) == trial["plan"]


def test_each_cell_has_each_plan_once(load):
    trial_list = load("trial_list")
    seen = Counter(
        (trial["cell"], json.dumps(trial["plan"]))
        for trial in trial_list.read("trial")
        if trial["origin"] not in ("control again", "fault")
    )
    assert set(seen.values()) == {1}


def test_the_same_seed_gives_the_same_simulated_rows(load, monkeypatch):
    simulated, rows = load("simulated"), load("rows")
    for name, value in (("PLANS_A_CELL", 9), ("NAMED_A_CELL", 3), ("HYBRIDS_A_CELL", 2)):
        monkeypatch.setattr(simulated, name, value)
    made = [rows.Tables() for _ in range(2)]
    for each in made:
        simulated.add_simulated(each, seed=5, cells=2)
    assert made[0].runs == made[1].runs
    assert {row["kind"] for row in made[0].runs} == {"simulated"}
    assert len(made[0].runs) >= 12
    assert all(row["step_s"] == row["simulated_s"] for row in made[0].runs)


def _line(trial, **found):
    about = {"commit": "abc", "cpu": "2 x some CPU", "software": "Python, torch", "load": 0.5, "at": "2026-11-25"}
    return {"kind": "trial", "cell": trial["cell"], "number": trial["number"], "session": "s", **about, **found}


def test_lines_become_rows(load, tmp_path):
    computed, rows, trial_list = load("computed"), load("rows"), load("trial_list")
    first, second, third = trial_list.read("trial")[:3]
    session = {"kind": "session", "cell": first["cell"], "number": "s", "at": "2026-11-25", "links_wrong": []}
    session["workload"] = json.loads(to_json(WORKLOAD))
    samples = [[0.2, 0.3, 0.2], [0.4, 0.5, 0.4], [0.3, 0.3, 0.3]]
    lines = [
        session,
        _line(first, status="ok", reason="", samples=samples, num_steps=6, period=1, sent_bytes=5.0, exposed_s=0.1),
        _line(second, status="failed", reason="rank 1: exit code 3: "),
        _line(third, status="aborted", reason="0.9 s a step"),
        _line(first | {"number": 999}, status="ok", reason="", samples=samples),
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tri')
    tables = rows.Tables()
    computed.add_computed(tables, path)
    assert [row["status"] for row in tables.runs] == ["ok", "failed", "aborted"]
    assert [row["step_s"] for row in tables.runs] == [0.3, None, None]
    assert tables.runs[0]["blocks_s"] == [0.2, 0.4, 0.3]
    assert tables.runs[0]["simulated_s"] > 0.04
    assert {row["kind"] for row in tables.runs} == {"measured-computed"}
    check = load("check")
    found = {name: list(each.values()) for name, each in tables.rows.items()}
    assert _faults(check, found | {"slept": [], "simulated": [], "computed": tables.runs}) == []


def test_what_has_a_line_is_not_measured_again(load, tmp_path):
    measure, trial_list = load("measure"), load("trial_list")
    first, second = trial_list.read("trial")[:2]
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(_line(first, status="failed", reason="x", wall_s=2.0)) + '\n{"kind": "trial", "ce')
    campaign = measure.Campaign(path, 0.0, 1.0, trial_list.LIST, [], 0)
    assert campaign.has(first)
    assert not campaign.has(second)
    (cell, *_) = campaign.cells(campaign.clusters[0]["cluster"])
    assert cell["trials"][0] == second
    assert cell["control"] == first
    campaign.add("trial", second["cell"], second["number"], {"status": "ok", "wall_s": 4.0})
    assert "2 done" in measure.Campaign(path, 0.0, 1.0, trial_list.LIST, [], 0).text()


def test_who_is_held_out_is_not_learned_from(load):
    tasks = load("tasks")
    places = [(c, m) for c in ("4x1-100mbit-5ms-slow0.5", "far") for m in ("bert", "cnn")]
    rows = [{"kind": "measured-slept", "cluster_name": c, "model_family": m} for c, m in places]
    for task, held, left_out in (("cluster", 2, 0), ("model", 2, 0), ("both", 1, 2)):
        train, test = tasks.split(rows, task)
        assert (len(test), len(rows) - len(train) - len(test)) == (held, left_out)
    with pytest.raises(ValueError, match="there is no task 'all'"):
        tasks.split(rows, "all")


def test_scores_of_orders_that_are_known(load):
    tasks = load("tasks")
    cell = [{"step_s": s} for s in (0.1, 0.2, 0.4, 0.8)]
    right = tasks.scores(np.log([row["step_s"] for row in cell]), cell)
    assert right == pytest.approx({"pair": 1, "tau": 1, "regret@1": 0, "regret@5": 0, "error": 0, "p90": 0})
    wrong = tasks.scores(np.log([0.8, 0.4, 0.2, 0.1]), cell)
    assert (wrong["pair"], wrong["tau"], wrong["regret@1"]) == pytest.approx((0, -1, 7))
    assert wrong["regret@5"] == 0


def test_the_residual_learns_what_a_family_costs_more(load):
    tasks = load("tasks")
    row = {"simulated_parts": [0.5, 0.3, 0.1, 0.1], "num_bytes": 1e6, "num_ranks": 4, "period": 1, "optimizer": "SGD"}
    rows = [
        {**row, "family": family, "simulated_s": s, "step_s": s * factor}
        for family, factor in (("a", 1.0), ("b", 1.5))
        for s in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    ]
    predicted = np.exp(tasks.residual(rows, rows)) / [r["step_s"] for r in rows]
    plain = np.exp(tasks.simulator(rows, rows)) / [r["step_s"] for r in rows]
    assert np.abs(predicted - 1).max() < 0.1
    assert np.abs(plain - 1).max() > 0.3


_CELLS = """
import json, sys
sys.modules["torch"] = sys.modules["pliant"] = sys.modules["pandas"] = None
names = {}
for cell in json.load(open("benchmarks/dataset/baselines.ipynb"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
"""


def test_the_notebook_computes_the_table_of_the_page():
    done = subprocess.run([sys.executable, "-c", _CELLS], cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("rows agree.\n")
