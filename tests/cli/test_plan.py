"""`pliant plan` finds what pays on a network that is not there, and writes it for relax()."""

import json
import re
from dataclasses import replace

import pytest

import pliant
from planner.made_up_ratios import ratio_row, table
from pliant.cli.plan import plan as plan_command
from pliant.planner import CodecErrors, Gene, Genome, Trial, lossy_codecs
from pliant.planner.experience import Experience, TrainingSetup
from pliant.planner.genome import is_exact
from pliant.simulator import Overheads, workload_named
from pliant.spec import Host, LocalSteps, SyncPlan, Topology, load, save

__all__ = ["table"]


def call(rate: str, **options) -> None:
    plan_command("vgg16", hosts=4, rate=rate, compute="140ms", candidates=40, **options)


def test_exact_plans_alone_unless_more_is_allowed(tmp_path, capsys):
    call("1gbit", out=tmp_path / "plan.json", json_file=tmp_path / "all.json")
    said = capsys.readouterr().out
    assert "predicted: a step of" in said
    plan = load(SyncPlan, tmp_path / "plan.json")
    assert all(not rule.exchange.coding for rule in plan.rules)
    assert "pliant plan" in plan.provenance
    rows = json.loads((tmp_path / "all.json").read_text())["plans"]
    times = [row["to_accuracy_s"] for row in rows]
    assert times == sorted(times)
    shown = [line for line in said.splitlines() if re.match(r"\s*\d* +[\d.]+[mu]?s +[\d.]+x +[\d.]+x", line)]
    assert len(rows) == len(shown) > 0, "the plans of the table, and no other"
    assert rows[0]["plan"]["rules"] == json.loads((tmp_path / "plan.json").read_text())["rules"]


def test_on_a_slow_network_with_a_budget_it_sends_less(tmp_path):
    exact, relaxed = tmp_path / "exact.json", tmp_path / "relaxed.json"
    call("100mbit", json_file=exact)
    call("100mbit", quality=1.3, json_file=relaxed, trace=tmp_path / "trace.json")
    first, second = (json.loads(path.read_text())["plans"][0]["to_accuracy_s"] for path in (exact, relaxed))
    assert second < 0.5 * first
    assert json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.extended
def test_of_a_sharded_model_its_shards_are_planned(tmp_path):
    call("100mbit", sharded=4, out=tmp_path / "plan.json", json_file=tmp_path / "all.json")
    exact = load(SyncPlan, tmp_path / "plan.json")
    wanted = pliant.sharded(gradients="bf16", weights="allreduce", regather=False)
    assert all(rule.exchange == wanted for rule in exact.rules)
    call("100mbit", sharded=4, quality=1.1, out=tmp_path / "coded.json")
    codecs = {rule.exchange.gradients.codec for rule in load(SyncPlan, tmp_path / "coded.json").rules}
    assert {codec.name for codec in codecs if codec is not None} & {"int4", "minmax8"}
    call("100mbit", sharded=2, quality=1.3, optimizer="AdamW", out=tmp_path / "replicas.json")


def test_with_an_optimizer_that_nothing_was_measured_with_plans_are_exact(tmp_path, capsys):
    out = tmp_path / "plan.json"
    call("100mbit", quality=1.3, optimizer="RMSprop", out=out)
    said = capsys.readouterr().out
    assert "measured with SGD only, and this training uses RMSprop; --unmeasured considers them all" in said
    assert "overheads: defaults of one CPU core and Gloo, not of your machines; measure one with pliant probe" in said
    assert all(is_exact(rule.exchange) for rule in load(SyncPlan, out).rules)
    save(Overheads(), tmp_path / "overheads.json")
    call("100mbit", quality=1.3, optimizer="RMSprop", unmeasured=True, overheads=tmp_path / "overheads.json", out=out)
    said = capsys.readouterr().out
    assert "Only exact plans are considered" not in said
    assert f"overheads: {tmp_path / 'overheads.json'}" in said
    plan = load(SyncPlan, out)
    assert not all(is_exact(rule.exchange) for rule in plan.rules), plan


def test_local_steps_are_planned_with_the_optimizer_that_they_were_measured_with(tmp_path, capsys, table):
    gene, out = Gene("muloco", {"period": 60, "fragments": 4, "delay_steps": 2, "averaging": "int4"}), tmp_path / "p"
    table(ratio_row(gene, "Muon", 1.02, 1.04, tasks=1, parameters=400_000, steps=1000, limit=1.25))
    call("100mbit", quality=1.1, optimizer="Muon", out=out)
    nodes = [rule.exchange for rule in load(SyncPlan, out).rules]
    assert all(isinstance(node, LocalSteps) and node.inner_optimizer == "Muon" for node in nodes)
    said = capsys.readouterr().out
    assert "Only exact plans and plans that were measured with it are considered" in said
    assert "1.02 times the steps, measured with 0.4 M parameters on 4 ranks in 1,000 steps, with Muon" in said
    call("100mbit", quality=1.1, optimizer="AdamW", out=out)
    assert all(is_exact(rule.exchange) for rule in load(SyncPlan, out).rules)
    assert "Left out: " in capsys.readouterr().out


@pytest.mark.parametrize("steps", [999, 1000])
def test_what_was_measured_in_a_longer_training_is_not_planned(tmp_path, table, steps):
    gene, out = Gene("muloco", {"period": 60, "fragments": 4, "delay_steps": 2, "averaging": "int4"}), tmp_path / "p"
    table(ratio_row(gene, "Muon", 1.02, 1.04, tasks=1, parameters=400_000, steps=1000, limit=1.25))
    call("100mbit", quality=1.1, optimizer="Muon", steps=steps, out=out, json_file=tmp_path / "all.json")
    counts = steps == 1000
    assert all(is_exact(rule.exchange) != counts for rule in load(SyncPlan, out).rules)
    told = json.dumps(json.loads((tmp_path / "all.json").read_text())["frontier"])
    assert ("1.02 times the steps, measured with" in told) == counts


def test_the_same_seed_finds_the_same_plan(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        call("1gbit", quality=1.3, seed=5, out=path)
    assert paths[0].read_text() == paths[1].read_text()


def test_a_slow_rank_is_waited_for(tmp_path):
    slow = replace(workload_named("vgg16", 0.14), rank_factors=(1.0, 1.0, 1.0, 3.0))
    save(slow, tmp_path / "work.json")
    found = tmp_path / "all.json"
    plan_command(str(tmp_path / "work.json"), hosts=4, rate="none", candidates=10, json_file=found)
    assert min(row["to_accuracy_s"] for row in json.loads(found.read_text())["plans"]) >= 3 * 0.14


def test_a_budget_below_exact_is_refused():
    with pytest.raises(ValueError, match="fewer steps than exact"):
        call("1gbit", quality=0.9)


@pytest.fixture
def measured(tmp_path):
    """VGG16 whose linear layers, most of the elements, hold a tenth of the gradient."""
    bare = workload_named("vgg16", 0.14)
    num = len(bare.tensors)
    errors = {str(codec): 0.6 for codec in lossy_codecs()}
    tensors = tuple(
        replace(t, gradient_share=0.9 / (num - 6) if k >= 6 else 0.1 / 6, gradient_error=errors)
        for k, t in enumerate(bare.tensors)
    )
    work = replace(bare, tensors=tensors, batch_size=32, noise_scale=64.0)
    save(work, tmp_path / "work.json")
    return work, tmp_path / "work.json"


def test_within_a_budget_of_errors(tmp_path, capsys, measured):
    work, file = measured
    out, rows = tmp_path / "plan.json", tmp_path / "all.json"
    plan_command(str(file), hosts=4, rate="1gbit", candidates=40, error_budget=0.1, optimizer="AdamW", out=out)
    plan = load(SyncPlan, out)
    assert 0 < CodecErrors(work).of(plan) <= 0.1
    assert "errors 0.1" in plan.provenance
    said = " ".join(capsys.readouterr().out.split())
    assert "within 0.1" in said
    assert "relative squared error of the gradient, as measured: 0.0" in said
    assert "consider Lamb" in said
    plan_command(str(file), hosts=4, rate="1gbit", candidates=40, error_budget=0.1, quality=1.0, json_file=rows)
    exact = json.loads(rows.read_text())["plans"][0]
    assert all(rule["exchange"].get("codec", {"type": "bf16"})["type"] == "bf16" for rule in exact["plan"]["rules"])


def test_a_budget_of_errors_needs_errors():
    with pytest.raises(ValueError, match="name codecs in"):
        call("1gbit", error_budget=0.3)


def test_an_experience_gives_model_network_and_costs_and_another_models_is_refused(tmp_path, capsys):
    workload, path = workload_named("lstm", 0.1), tmp_path / "experience.json"
    links = Topology(hosts=tuple(Host(name=n, send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for n in "ab"))
    kept = Genome(Gene("exact", {"bits": 16}))
    made = Experience(
        setup=TrainingSetup(
            shapes=tuple(tensor.shape for tensor in workload.tensors),
            dtypes=("float32",) * len(workload.tensors),
            optimizer="AdamW",
            ranks=(1, 1),
            machines=("a", "b"),
            quality=1.0,
            release="0",
        ),
        workload=workload,
        topology=links,
        overheads=Overheads(),
        coefficients=tuple(Overheads().coefficients().tolist()),
        trials=(Trial(genes=kept, steps_s=(0.3,)),),
        predicted_s=(0.25,),
        ratios=(1.0,),
        kept=kept,
        kept_s=0.3,
    )
    save(made, path)
    plan_command(experience=path, candidates=5)
    said = capsys.readouterr().out
    assert "overheads: fitted to 1 trials of the experience" in said
    assert "exact(bits=16): 250 ms, 300 ms" in said
    assert "with AdamW" in said
    with pytest.raises(ValueError, match="--staged is for a --machine with GPUs"):
        plan_command(experience=path, staged=True)
    with pytest.raises(ValueError, match="say who there is"):
        plan_command(experience=path, ranks=0)
    with pytest.raises(ValueError, match="tensors, and vgg16 has"):
        call("1gbit", experience=path)
    save(Overheads(), path)
    with pytest.raises(ValueError, match=str(path)):
        plan_command(experience=path)
