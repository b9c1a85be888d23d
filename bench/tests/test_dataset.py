"""Rows that were written are read again, and nobody is trained on who is held out."""

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.examples import FLAT, TWO_A_HOST, WORKLOAD
from pliant.planner import BASELINES, Genome, Quality, Space
from pliant.planner.genome import Gene
from pliant.spec import from_json, to_json
from pliant_bench.dataset import (
    COLUMNS,
    ModelRow,
    NetworkRow,
    PlanRow,
    SimulatedRun,
    append_simulated,
    dataset_of,
    load,
    write,
)
from pliant_bench.harness.setup import Cell

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "dataset.md", ROOT / "benchmarks" / "results"
CHOCO = Genome(Gene("choco", {"bits": 8, "graph": "exponential"}))
SPACE = Space(WORKLOAD, TWO_A_HOST, Quality(budget=10))
MODELS = (WORKLOAD, replace(WORKLOAD, name="wider", forward_s=0.5))
TOPOLOGIES = (FLAT, TWO_A_HOST)
seconds = st.floats(1e-4, 10.0)


def _session(number, workload, topology, slow_share, links_wrong):
    cell = Cell(model=workload.name, rate="none", delay="0ms", slow_share=slow_share)
    check = {"source": "h0", "target": "h1", "wanted_bytes_per_s": 0.0, "found_bytes_per_s": 1e8}
    check |= {"wanted_round_trip_s": 0.0, "found_round_trip_s": 1e-4}
    return {
        "kind": "session",
        "session_id": f"s{number}",
        "cell": asdict(cell),
        "workload": json.loads(to_json(workload)),
        "size_share": 0.5,
        "topology": json.loads(to_json(topology)),
        "emulated": True,
        "compute_s": 0.3,
        "began": "2026-11-21T00:00:00Z",
        "machine": {"cpu": "x"},
        "links": [check],
        "links_wrong": links_wrong,
    }


def _trial(session, number, genes, samples, entry="plan"):
    fields = {"kind": "trial", "session_id": session, "number": number, "entry": entry, "name": "sample"}
    fields |= {"genes": json.loads(to_json(genes)), "ended": "2026-11-21T00:00:01Z", "load": 1.0}
    if not samples:
        return {**fields, "status": "failed", "reason": "rank 1: no end within 9 s"}
    figures = {"sent_bytes": 1e6, "received_bytes": 1e6, "wire_bytes": None, "exposed_s": 0.1, "exchange_s": 0.2}
    figures |= {"codec_s": 0.0, "peak_bytes": 5e8, "switch_s": 0.1, "took_s": 2.0, "num_steps": len(samples)}
    return {**fields, **figures, "status": "ok", "reason": "", "period": 1, "samples": [[s, s, s] for s in samples]}


@st.composite
def collections(draw):
    lines = []
    for number in range(draw(st.integers(1, 3))):
        workload, topology = draw(st.sampled_from(MODELS)), draw(st.sampled_from(TOPOLOGIES))
        wrong = draw(st.sampled_from([[], ["h0 -> h1 carries too little"]]))
        lines.append(_session(number, workload, topology, draw(st.sampled_from([0.0, 0.5])), wrong))
        for k in range(draw(st.integers(1, 3))):
            genes = SPACE.sample(random.Random(draw(st.integers(0, 10**6))))
            lines.append(_trial(f"s{number}", k, genes, draw(st.lists(seconds, max_size=4))))
    return lines


@pytest.mark.parametrize(
    ("slow_share", "genes", "expected_s"),
    [
        (0.0, CHOCO, [0.2, 0.3]),
        (0.5, CHOCO, [0.4, 0.5]),  # three ranks have run ahead of the slow one
        (0.5, Genome(Gene("delayed_nesterov", {"period": 4})), [0.2, 0.3]),  # and here they may
    ],
)
def test_a_slow_host_sets_the_pace_of_ranks_that_wait(slow_share, genes, expected_s):
    line = _trial("s0", 0, genes, [0.2, 0.3]) | {"samples": [[0.2, 0.4, 0.1], [0.3, 0.5, 0.1]]}
    made = dataset_of([_session(0, WORKLOAD, FLAT, slow_share, []), line])
    assert made.samples_of("s0-0").tolist() == expected_s
    assert made.runs["step_s"].tolist() == [np.median(expected_s)]


@given(collections())
def test_what_is_written_is_read_again(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("data")
    made = dataset_of(lines)
    write(made, folder)
    read = load(folder)
    for table in COLUMNS:
        assert read.rows(table) == made.rows(table)
    trials = [line for line in lines if line["kind"] == "trial"]
    assert len(read.runs["run_id"]) == len(trials)
    for k, line in enumerate(trials):
        genes = from_json(Genome, json.dumps(line["genes"]))
        assert read.plans[read.runs["plan_id"][k]].plan.rules == genes.plan().rules
        samples = [mean for mean, _, _ in line.get("samples", [])]
        assert read.samples_of(read.runs["run_id"][k]).tolist() == samples
        assert read.runs["step_s"][k] == np.median(samples) if samples else np.isnan(read.runs["step_s"][k])
    assert {model.workload for model in read.models.values()} <= set(MODELS)
    assert {network.topology for network in read.topologies.values()} <= set(TOPOLOGIES)


@given(collections())
def test_who_is_held_out_is_not_trained_on(lines):
    data = dataset_of(lines)
    runs = data.runs
    for model in data.models:
        roles = data.split(f"model:{model}")
        assert set(runs["model_id"][roles["test"]]) == {model}
        assert model not in runs["model_id"][roles["train"]]
    for model, topology in {*zip(runs["model_id"], runs["topo_id"], strict=True)}:
        roles = data.split(f"both:{model}|{topology}")
        train = roles["train"]
        assert model not in runs["model_id"][train]
        assert topology not in runs["topo_id"][train]
        assert len(roles["test"]) == len(data.trials(model, topology))


def _one(model, plans):
    lines = [_session(0, model, FLAT, 0.0, [])]
    return [*lines, *(_trial("s0", k, genes, [0.5, 0.5, 0.6]) for k, genes in enumerate(plans))]


def test_a_plan_has_one_role_at_random_and_roles_are_shared_out():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.3))
    plans = list(space.enumerate())
    total = len(plans) + 50
    data = dataset_of(_one(WORKLOAD, [*plans, *plans[:50]]))
    roles = data.split("random")
    assert sum(len(places) for places in roles.values()) == total
    shares = [len(roles[role]) / total for role in ("train", "val", "test")]
    assert shares == pytest.approx([0.7, 0.15, 0.15], abs=0.1)
    ids = {role: set(data.runs["plan_id"][places]) for role, places in roles.items()}
    assert ids["train"].isdisjoint(ids["test"] | ids["val"])
    with pytest.raises(ValueError, match="there is no split 'best'; there are both:"):
        data.split("best")


@pytest.mark.parametrize(
    "more", [{"connections": 8}, {"window_bytes": 1e6}, {"num_cpus": 4.0}, {"machine": "t4"}], ids=str
)
def test_a_network_that_would_lose_something_is_refused(more):
    hosts = tuple(replace(host, machine=more.get("machine", "")) for host in FLAT.hosts)
    fields = {key: value for key, value in more.items() if key != "machine"}
    with pytest.raises(ValueError, match="for which the data set has no column"):
        NetworkRow(topology=replace(FLAT, hosts=hosts, **fields))


def test_simulated_runs_join_and_are_told_apart(tmp_path):
    data = dataset_of(_one(WORKLOAD, [BASELINES["ddp"]]))
    one = SimulatedRun(
        model=ModelRow(family="wider", workload=MODELS[1]),
        network=NetworkRow(topology=TWO_A_HOST),
        planned=PlanRow(genes=BASELINES["topk"], generator="topk"),
        step_s=0.25,
        compute_s=0.2,
        exposed_s=0.05,
        codec_s=0.01,
        sent_bytes=1e5,
        simulator="1",
    )
    known = replace(one, model=ModelRow.from_row(data.rows("models")[0]), network=NetworkRow(topology=FLAT))
    write(append_simulated(append_simulated(data, [one]), [known]), tmp_path)
    more = load(tmp_path)
    assert more.runs["provenance"].tolist() == ["measured_emulated", "simulated", "simulated"]
    assert len(set(more.runs["run_id"])) == 3
    assert (len(more.models), len(more.topologies), len(more.plans)) == (2, 2, 2)  # what is known does not come twice
    (trial,) = more.trials(one.model.id, one.network.id, "simulated")
    assert (trial.genes, trial.step_s) == (BASELINES["topk"], 0.25)
    assert more.trials(one.model.id, one.network.id) == []
    assert "| simulated | ok | 2 |" in (tmp_path / "card.md").read_text()


def test_sessions_whose_control_moved_are_flagged():
    steady, moved = ([0.5, 0.52], [0.5, 0.5, 0.7])
    for steps_s, drifted in ((steady, False), (moved, True)):
        lines = [_session(0, WORKLOAD, FLAT, 0.0, [])]
        lines += [_trial("s0", k, BASELINES["ddp-bf16"], [s], "control") for k, s in enumerate(steps_s)]
        data = dataset_of(lines)
        assert set(data.runs["drifted"]) == {drifted}
        assert data.rows("sessions")[0]["drifted"] is drifted


def test_what_is_no_data_set_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"it has no models.parquet; make one with pliant collect --export"):
        load(tmp_path)
    with pytest.raises(ValueError, match="no trial was run yet"):
        dataset_of([])
    with pytest.raises(ValueError, match="which no line begins"):
        dataset_of([_trial("s9", 0, BASELINES["ddp"], [0.1])])
    write(dataset_of(_one(WORKLOAD, [BASELINES["ddp"]])), tmp_path)
    (tmp_path / "runs.parquet").write_bytes((tmp_path / "plans.parquet").read_bytes())
    with pytest.raises(ValueError, match="has the columns plan_id"):
        load(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RuntimeError, match=r"pip install 'pliant\[plan\]'"):
        dataset_of(_one(WORKLOAD, [BASELINES["ddp"]]))


def test_the_published_data_set_is_made_of_its_lines():
    folders = [RESULTS / "collected_2core_2026-11-29" / name for name in ("none", "two-a", "two-b", "delays")]
    lines = [line for folder in folders for line in (folder / "trials.jsonl").read_text().splitlines()]
    made, published = dataset_of([json.loads(line) for line in lines]), load(RESULTS / "dataset_2core_2026-11-29")
    for table in ("models", "topologies", "plans", "sessions", "runs", "steps"):
        assert published.rows(table) == made.rows(table)


def test_the_page_explains_every_column():
    text = PAGE.read_text()
    for table, columns in COLUMNS.items():
        assert f"### {table}\n" in text
        for name, (kind, meaning) in columns.items():
            assert f"| `{name}` | {kind} | {meaning} |" in text
