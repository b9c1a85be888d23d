"""What people and programs see of the simulator: the command, the trace, the models."""

import json
import sys
from dataclasses import replace

import pytest
from cases import cluster, even, plan_for

import pliant
from pliant.algorithms.by_name import plan_of_text
from pliant.cli.main import main
from pliant.simulator import MODELS, simulate, to_trace, workload_named, write_trace
from pliant.spec import SyncPlan, Topology, save


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["pliant", "simulate", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), " ".join(err.split())


def test_the_command_predicts_and_writes(monkeypatch, capsys, tmp_path):
    plan, work, links = tmp_path / "plan.json", tmp_path / "work.json", tmp_path / "links.json"
    save(SyncPlan(), plan)
    save(even(), work)
    save(cluster(3), links)
    trace, found = tmp_path / "trace.json", tmp_path / "found.json"
    code, out, err = run(
        monkeypatch, capsys, plan, "--workload", work, "--topology", links, "--trace", trace, "--json", found
    )
    assert (code, err) == (0, "")
    assert "bottleneck network" in out
    assert "critical path: compute" in out
    numbers = json.loads(found.read_text())
    assert numbers["step_s"] == pytest.approx(simulate(SyncPlan(), even(), cluster(3)).step_s)
    assert len(numbers["sent_bytes"]) == 3
    assert json.loads(trace.read_text())["traceEvents"]


def test_the_command_takes_names_and_numbers(monkeypatch, capsys):
    code, out, _ = run(
        monkeypatch,
        capsys,
        "diloco(period=4)",
        "--workload",
        "vgg16",
        "--compute",
        "140ms",
        "--hosts",
        4,
        "--rate",
        "1gbit",
    )
    assert code == 0
    assert "mean over a period of 4" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing", "--workload", "vgg16", "--compute", "1s", "--hosts", "2"], "there is no algorithm 'nothing'"),
        (["bytegrad", "--workload", "vgg16", "--hosts", "2"], "give --compute"),
        (["bytegrad", "--workload", "vgg17", "--hosts", "2"], "there is no workload 'vgg17'"),
        (["bytegrad", "--workload", "vgg16", "--compute", "1s"], "say who there is, once"),
        (["bytegrad", "--workload", "vgg16", "--compute", "1s", "--hosts", "-1"], "--hosts is -1"),
        (["bytegrad", "--workload", "vgg16", "--compute", "0s", "--hosts", "2"], "must take some time"),
        (["gone.json", "--workload", "vgg16", "--compute", "1s", "--hosts", "2"], "gone.json"),
    ],
)
def test_mistakes_are_explained(monkeypatch, capsys, arguments, sentence):
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert sentence in err


def test_ranks_compute_as_they_were_observed(monkeypatch, capsys, tmp_path):
    """A workload of as many ranks says how much longer each computes; one of other ranks says nothing here."""
    work, found = replace(even(), rank_factors=(1.0, 1.0, 2.5)), tmp_path / "found.json"
    save(work, tmp_path / "work.json")
    for num_hosts, slowdown in ((3, work.rank_factors), (2, ())):
        save(cluster(num_hosts), tmp_path / "links.json")
        where = ("--workload", tmp_path / "work.json", "--topology", tmp_path / "links.json", "--json", found)
        assert run(monkeypatch, capsys, "bytegrad", *where)[0] == 0
        predicted = simulate(plan_of_text("bytegrad"), work, cluster(num_hosts), slowdown=slowdown)
        assert json.loads(found.read_text())["step_s"] == predicted.step_s


def test_a_step_without_work_is_shown(monkeypatch, capsys, tmp_path):
    save(even(forward_s=0.0, backward_s=0.0, step_s=0.0), tmp_path / "work.json")
    code, out, err = run(monkeypatch, capsys, "allreduce", "--workload", tmp_path / "work.json", "--hosts", 1)
    assert (code, err) == (0, "")
    assert "step 0us" in out


def test_a_trace_has_a_process_for_each_rank_and_bytes_once(tmp_path):
    found = simulate(plan_for(pliant.bytegrad()), even(), cluster(2, ranks=2))
    events = to_trace(found.timeline)["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"compute", "exchange", "coding", "network"}
    sent = sum(e["args"]["sent_bytes"] for e in events if e["ph"] == "X" and e["pid"] == 1)
    assert sent == found.sent_bytes[1]
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    write_trace(found.timeline, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == to_trace(found.timeline)


@pytest.mark.parametrize(("name", "millions"), [("vgg16", 138.36), ("bert-large", 334.1)])
def test_models_have_their_published_size(name, millions):
    work = workload_named(name, 0.3)
    assert work.numel / 1e6 == pytest.approx(millions, rel=1e-3)
    assert work.forward_s + work.backward_s == pytest.approx(0.3)
    ready = [t.ready_s for t in work.tensors]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(0.2)
    assert name in MODELS
    with pytest.raises(ValueError, match="no model 'nothing'"):
        workload_named("nothing", 1.0)


VGG = ("--workload", "vgg16", "--compute", "140ms")


def test_a_prediction_says_whose_costs_it_took(monkeypatch, capsys, tmp_path):
    found = tmp_path / "found.json"
    code, out, err = run(monkeypatch, capsys, "bf16", *VGG, "--machine", "h100", "--hosts", 4, "--json", found)
    assert (code, err) == (0, "")
    assert "of 32" in out
    assert "overheads: of h100, by vendors' figures" in out
    assert "may be off by more than half" in out
    assert "warning" not in out
    numbers = json.loads(found.read_text())
    assert "h100" in numbers["costs"]
    staged = run(monkeypatch, capsys, "bf16", *VGG, "--machine", "h100", "--hosts", 4, "--staged", "--json", found)
    assert staged[0] == 0
    assert json.loads(found.read_text())["step_s"] > numbers["step_s"]


@pytest.mark.parametrize("machine", [(), ("--machine", "cpu-core")])
def test_costs_of_a_core_for_gpus_are_warned_of(monkeypatch, capsys, machine):
    _, out, _ = run(monkeypatch, capsys, "bf16", *VGG, "--hosts", 2, "--rate", "100gbit", *machine)
    assert "warning: the model computes at 663 Gflop/s and a host has 100 Gbit/s, as GPUs have it" in out
    slow = ("--workload", "cnn", "--compute", "20ms", "--hosts", 2, "--rate", "1gbit")
    assert "warning" not in run(monkeypatch, capsys, "bf16", *slow, *machine)[1]


def test_a_topology_may_name_machines(monkeypatch, capsys, tmp_path):
    links = tmp_path / "links.json"
    save(cluster(2, rate=0.0, ranks=8, machine="a100"), links)
    _, out, _ = run(monkeypatch, capsys, "bf16", *VGG, "--topology", links)
    assert "overheads: of a100, by vendors' figures" in out
    hosts = (*cluster(1, rate=0.0, ranks=8, machine="a100").hosts, replace(cluster(1).hosts[0], name="other"))
    save(Topology(hosts=hosts), links)
    _, out, _ = run(monkeypatch, capsys, "bf16", *VGG, "--topology", links)
    assert "overheads: of a100, cpu-core, by vendors' figures" in out
    assert "but these costs are a CPU core's" in out
    code, _, err = run(monkeypatch, capsys, "bf16", *VGG, "--hosts", 2, "--staged")
    assert code == 2
    assert "--staged is for a --machine with GPUs" in err
