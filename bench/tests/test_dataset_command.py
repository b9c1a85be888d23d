"""`pliant dataset` on measured runs that are known: made by the simulator itself, or spoilt."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from pliant.planner import BASELINES, WORKLOADS, Quality, Space, Trial, scaled_down
from pliant.simulator import CostFeatures, Overheads, simulate
from pliant.spec import Host, Topology, to_json
from pliant_bench.dataset import NetworkRow, dataset_of, load, write
from pliant_bench.dataset.command import dataset
from pliant_bench.dataset.measured import MeasuredCell, as_watched, measured_cells
from pliant_bench.dataset.sampled import simulated_runs
from pliant_bench.dataset.validation import ValidationGate, validate


def network(rate: float, slow_share: float = 0.0) -> NetworkRow:
    hosts = [Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(4)]
    return NetworkRow(topology=Topology(hosts=tuple(hosts)), slow_share=slow_share)


def cell(family: str, rate: float, spoil=lambda genes, s: s) -> MeasuredCell:
    """A cell whose measured times are those of the simulator, or what is made of them."""
    workload, _ = scaled_down(WORKLOADS[family](), 4e6)
    where = network(rate)
    space, rng = Space(workload, where.topology, Quality(budget=1.3)), random.Random(0)
    genes = list({space.sample(rng) for _ in range(25)})
    physics = CostFeatures(workload, where.topology)
    times = physics.counts([g.plan() for g in genes], physics.coefficients) @ physics.coefficients
    trials = [Trial(genes=g, steps_s=(spoil(g, s),) * 3) for g, s in zip(genes, times.tolist(), strict=True)]
    return MeasuredCell(model_id=f"{family}-0", topo_id=f"{rate:g}-0", physics=physics, trials=tuple(trials))


def test_a_simulator_that_is_right_passes():
    found = validate([cell("vgg16", 1e7), cell("bert", 1e8)])
    assert found.is_open
    assert found.figures["error"] < 0.02
    assert set(found.cells) == {"vgg16 1e+07", "bert 1e+08"}
    assert found.families == sorted(found.bias)
    assert "The gate is open" in found.text()


def test_a_simulator_that_is_wrong_does_not():
    rng = np.random.default_rng(0)

    def noisy(_, s):
        return s * float(np.exp(rng.normal(0, 0.5)))

    found = validate([cell("vgg16", 1e7, noisy), cell("bert", 1e8, noisy)])
    assert not found.is_open
    assert "closed" in found.text()


def test_a_family_that_is_off_to_one_side_is_not_simulated():
    good = {"pair": 0.95, "tau": 0.9, "error": 0.05, "p90": 0.1, "regret@10": 0.0}
    found = ValidationGate(
        cells={"a": good}, bias={"exact": (9, -0.09, 0.1), "gossip": (9, 0.11, 0.12), "local": (9, -0.2, 0.2)}
    )
    assert found.families == ["exact"]
    assert "| gossip | 9 | +11.0% | 12.0% | no |" in found.text()


def test_a_cell_with_one_plan_counts_with_its_error():
    one, other = cell("vgg16", 1e7), cell("bert", 1e8)
    found = validate([replace(one, trials=one.trials[:1]), other])
    assert found.figures["pair"] == found.cells["bert 1e+08"]["pair"]
    assert found.figures["error"] == pytest.approx(np.mean([each["error"] for each in found.cells.values()]))
    assert "| vgg16 1e+07 | - | - |" in found.text()
    alone = ValidationGate(cells={"a": found.cells["vgg16 1e+07"]}, bias={})
    assert not alone.is_open  # whether it orders plans is not known


def test_cells_of_two_sizes_of_a_model_are_two_cells():
    one = cell("vgg16", 1e7)
    found = validate([one, replace(one, model_id="vgg16-1"), cell("bert", 1e8)])
    assert set(found.cells) == {"vgg16 1e+07", "vgg16-1 1e+07-0", "bert 1e+08"}


def test_a_cell_needs_another_that_shares_nothing_with_it():
    with pytest.raises(ValueError, match="another model on another network"):
        validate([cell("vgg16", 1e7), cell("vgg16", 1e8)])


@pytest.mark.extended
def test_simulated_runs_are_those_of_the_seed_and_of_the_families():
    runs = simulated_runs(150, ["exact", "quantized"], Overheads(), "test", 3)
    again = simulated_runs(150, ["exact", "quantized"], Overheads(), "test", 3)
    assert [(r.model.id, r.network.id, r.planned, r.step_s) for r in runs] == [
        (r.model.id, r.network.id, r.planned, r.step_s) for r in again
    ]
    assert {gene.family for r in runs for gene in r.planned.genes.genes} == {"exact", "quantized"}
    assert len({(r.model.id, r.network.id, r.planned.plan.hash) for r in runs}) == 150
    one = runs[40]
    same = simulate(
        one.planned.plan,
        one.model.workload,
        one.network.topology,
        overheads=Overheads(),
        slowdown=one.network.slowdown,
    )
    assert one.step_s == same.step_s


def test_a_slow_host_is_the_last():
    assert network(1e7).slowdown == ()
    assert network(1e7, 0.5).slowdown == [1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("slow_share", [0.0, 0.5])
def test_a_workload_takes_what_its_session_watched(slow_share):
    workload, where = WORKLOADS["lstm"](), network(0.0, slow_share)
    by_formula_s = workload.compute_s / (slow_share or 1.0)
    watched = as_watched(workload, where, by_formula_s + 0.01)
    found = simulate(BASELINES["ddp"].plan(), watched, where.topology, slowdown=where.slowdown)
    assert found.compute_s == pytest.approx(by_formula_s + 0.01)
    assert as_watched(workload, where, 0.5 * by_formula_s).step_s == 0  # never shorter than the formula


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(dataset)
    return app


def lines_of(cells: dict[tuple[str, float], float]) -> list[dict]:
    """What `pliant collect` would have written, had it measured what the simulator says, times a factor."""
    lines = []
    for k, ((family, rate), factor) in enumerate(cells.items()):
        made = cell(family, rate, lambda _, s, f=factor: s * f)
        workload, share = scaled_down(WORKLOADS[family](), 4e6)
        lines.append(
            {
                "kind": "session",
                "session_id": f"s{k}",
                "cell": {"model": family, "rate": "x", "delay": "0ms", "slow_share": 0.0},
                "workload": json.loads(to_json(workload)),
                "topology": json.loads(to_json(network(rate).topology)),
                "size_share": share,
                "emulated": True,
                "compute_s": 0.1,
                "links": [],
                "links_wrong": [],
                "machine": {},
                "began": "",
            }
        )
        for number, trial in enumerate(made.trials):
            lines.append(
                {
                    "kind": "trial",
                    "session_id": f"s{k}",
                    "number": number,
                    "entry": "plan",
                    "name": "sample",
                    "genes": json.loads(to_json(trial.genes)),
                    "status": "ok",
                    "reason": "",
                    "samples": [[s, s, s] for s in trial.steps_s],
                    "ended": "",
                }
            )
    return lines


@pytest.mark.extended
def test_the_command_adds_simulated_runs_behind_the_measured_ones(tmp_path):
    write(dataset_of(lines_of({("vgg16", 1e7): 1.05, ("bert", 1e8): 1.05})), tmp_path / "data")
    arguments = [str(tmp_path / "data"), "--out", str(tmp_path / "more"), "--simulated", "70"]
    done = CliRunner().invoke(_app(), [*arguments, "--overheads", str(tmp_path / "overheads.json")])
    assert done.exit_code == 0, done.output
    more = load(tmp_path / "more")
    kinds = more.runs["provenance"].tolist()
    assert kinds.count("simulated") == 70
    assert len(measured_cells(more)) == 2
    assert "The gate is open" in (tmp_path / "more" / "gate.md").read_text()
    assert json.loads((tmp_path / "overheads.json").read_text())["wire_factor"] > 0
    assert np.isfinite(more.runs["step_s"]).all()


def test_the_command_refuses_to_add_what_would_mislead(tmp_path):
    lines = lines_of({("vgg16", 1e7): 1.0, ("bert", 1e8): 1.0})
    rng = random.Random(0)
    for line in lines:
        if line["kind"] == "trial":
            line["samples"] = [[rng.uniform(0.1, 1)] * 3]
    write(dataset_of(lines), tmp_path / "data")
    done = CliRunner().invoke(_app(), [str(tmp_path / "data"), "--out", str(tmp_path / "more")])
    assert isinstance(done.exception, RuntimeError)
    assert "would mislead" in str(done.exception)
    assert not (tmp_path / "more").exists()
