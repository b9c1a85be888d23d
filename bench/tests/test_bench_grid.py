"""A grid: its order, its resumption, who wins, and one small run of each kind."""

import json
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from pliant.cli.emulate import topology_from_flags
from pliant.network import CannotEmulateError, LinkReport
from pliant.network.changes import without_limits
from pliant.spec import Link
from pliant_bench.harness import rank_speed, stages
from pliant_bench.harness.arms import Arm, plan_of_arm
from pliant_bench.harness.command import bench
from pliant_bench.harness.exchange_period import steps_of_a_turn, uncounted_steps
from pliant_bench.harness.grid import NetworkController, cells_left, cells_of, cells_of_file
from pliant_bench.harness.metric import METRICS
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import MARK, OPEN, STOP, Cell, Setup, stage_file
from pliant_bench.tables.report import page
from pliant_bench.tables.text import markdown
from pliant_bench.tables.winners import cell_rows, read_trained
from waiting import made_up_clock


def _bench(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    return CliRunner().invoke(app, arguments)


def test_cells_go_from_the_fastest_network_to_the_slowest():
    cells = cells_of(["cnn"], ["10mbit", "1gbit"], ["0ms", "20ms"], 0.25)
    assert [(c.rate, c.delay, c.slow_share) for c in cells] == [
        ("1gbit", "20ms", 0.0),
        ("1gbit", "0ms", 0.0),
        ("1gbit", "0ms", 0.25),
        ("10mbit", "20ms", 0.0),
        ("10mbit", "0ms", 0.0),
        ("10mbit", "0ms", 0.25),
    ]


def _found(*step_s, free=False):
    return {"step_s": list(step_s), "num_steps": 2, "sent_bytes": 1.0, "counted": True, "exposed_s": 0.0, "free": free}


def _cell(rate, **arms):
    names = {name.replace("_bf16", "-bf16"): found for name, found in arms.items()}
    fields = {"model": "cnn", "rate": rate, "delay": "0ms", "slow_share": 0.0, "took_s": 1.0, "links_wrong": []}
    return {"kind": "cell", **fields, "arms": names}


CELLS = [
    _cell(
        "10mbit",
        compute=_found(0.1, 0.1),
        ddp=_found(2.0, 2.2),
        ddp_bf16=_found(1.0, 1.2),
        onebit=_found(0.2, 0.2),
        diloco=_found(0.1, 0.1),
        async_average=_found(0.1, 0.1, free=True),
    ),
    _cell("1gbit", compute=_found(0.1), ddp=_found(0.12), ddp_bf16=_found(0.11), onebit=_found(0.2)),
]


def _training(capped=(), **arms):
    """Of arm -> (first accuracy, last accuracy) after 50 and 100 steps."""
    records = [
        {
            "kind": "train",
            "arm": name.replace("_bf16", "-bf16"),
            "seed": 0,
            "capped": name in capped,
            "curve": [{"step": 50, "accuracy": first}, {"step": 100, "accuracy": last}],
            "final_accuracy": last,
        }
        for name, (first, last) in arms.items()
    ]
    return {"setup": {"mode": "train", "models": ["cnn"], "target_accuracy": 0.85}, "records": records}


@pytest.fixture
def trained(tmp_path):
    arms = {"ddp": (0.8, 0.9), "ddp_bf16": (0.8, 0.9), "onebit": (0.84, 0.896), "async_average": (0.8, 0.9)}
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps(_training(**arms, diloco=(0.86, 0.88))))
    return read_trained([path])


def test_steps_to_a_target_lie_between_two_evaluations(trained):
    assert trained["ddp"].steps == pytest.approx(75.0)
    assert trained["onebit"].steps == pytest.approx(50 + 50 * 0.01 / 0.056)
    assert (trained["onebit"].gap, trained["onebit"].keeps) == (pytest.approx(-0.4), True)
    assert (trained["diloco"].steps, trained["diloco"].keeps) == (50.0, False)  # two points below
    lm = METRICS["lm"]
    assert lm.step_to(5.0, [{"step": 10, "perplexity": 6.0}, {"step": 20, "perplexity": 4.0}]) == 15.0
    assert lm.step_to(3.0, [{"step": 10, "perplexity": 6.0}]) is None
    assert lm.gap(5.05, 5.0) == pytest.approx(-1.0)


def test_a_seed_that_was_ended_early_did_not_get_there(tmp_path):
    result = _training(ddp_bf16=(0.8, 0.9), onebit=(0.86, 0.9), topk=(0.8, 0.9), capped=("topk",))
    for name, capped, accuracy in (("onebit", True, 0.5), ("ddp-bf16", False, 0.9)):
        curve = [{"step": 50, "accuracy": accuracy}]
        more = {"arm": name, "seed": 1, "capped": capped, "curve": curve, "final_accuracy": accuracy}
        result["records"].append({"kind": "train", **more})
    (tmp_path / "a.json").write_text(json.dumps(result))
    found = read_trained([tmp_path / "a.json"])
    assert (found["onebit"].steps, found["onebit"].gap, found["onebit"].keeps) == (None, None, False)
    assert found["topk"].steps == pytest.approx(75.0)
    assert (found["topk"].gap, found["topk"].keeps) == (None, False)
    assert (found["ddp-bf16"].gap, found["ddp-bf16"].keeps) == (0.0, True)


def test_seeds_of_several_files_count_together(tmp_path):
    """And a file without 16-bit DDP is held against that of another one."""
    for name, arms in (("a", {"ddp_bf16": (0.8, 0.9), "onebit": (0.86, 0.9)}), ("b", {"onebit": (0.8, 0.88)})):
        (tmp_path / name).write_text(json.dumps(_training(**arms)))
    for names in ("ab", "ba"):
        found = read_trained([tmp_path / name for name in names])
        assert found["onebit"].steps == pytest.approx((50 + 81.25) / 2)
        assert (found["onebit"].gap, found["onebit"].keeps) == (pytest.approx(-1.0), False)
        assert (found["ddp-bf16"].steps, found["ddp-bf16"].gap) == (pytest.approx(75.0), 0.0)


def test_the_best_arm_keeps_the_accuracy_and_is_held_against_the_best_exact_peer(trained):
    slow, fast = cell_rows(CELLS, trained)
    assert (slow.peer, slow.best) == ("ddp-bf16", "onebit")  # diloco is faster, but does not keep the accuracy
    assert slow.gain == pytest.approx(1.1 / 0.2 * 75 / trained["onebit"].steps)
    assert slow.communication == pytest.approx(1 - 0.1 / 1.1)
    assert slow.over_compute["onebit"] == 2.0
    assert "async_average" not in slow.to_target_s  # its steps depend on the network
    assert fast.gain == pytest.approx(0.11 / 0.2 * 75 / trained["onebit"].steps)
    untrained = cell_rows(CELLS, {})[0]
    assert (untrained.peer, untrained.best, untrained.to_target_s) == ("ddp-bf16", "diloco", {})


def test_files_of_other_trainings_are_refused(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps(_training(ddp=(0.8, 0.9))))
    other = _training(ddp=(0.8, 0.9))
    other["setup"]["target_accuracy"] = 0.9
    two.write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"different trainings \(cnn to 0.85, cnn to 0.9\)"):
        read_trained([one, two])
    two.write_text(json.dumps({"setup": {"mode": "time"}, "records": []}))
    with pytest.raises(ValueError, match="mode time; give one of --train"):
        read_trained([two])


def test_the_page_and_the_tables_show_every_network(trained):
    setup = asdict(Setup(mode="grid", models=("cnn",), arms=(), provenance={"command": "c"}))
    result = {"setup": setup, "trained": {arm: asdict(t) for arm, t in trained.items()}, "records": CELLS}
    text = page(json.loads(json.dumps(result)))
    assert not re.search(r"""(src|href)\s*=\s*["']""", text)
    assert text.count('class="figure"') == 2  # step time, and time to the target
    lines = markdown(result)
    assert "| cnn | 10mbit | 0ms | like all | 100ms | ddp-bf16 | 1.1s | 91% | onebit | 200ms | 2.00 |" in lines
    assert "| diloco | 50 | -2.00 | no |" in lines


def test_a_cell_that_is_in_the_file_is_not_measured_again(tmp_path):
    cells = cells_of(["cnn"], ["10mbit", "1gbit"], ["0ms"], 0.0)
    setup = Setup(mode="grid", models=("cnn",), arms=("compute", "ddp"), cells=cells)
    assert cells_of_file(tmp_path / "none.json", setup, 4) == []
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"setup": asdict(setup), "hosts": 4, "records": CELLS[:1]}))
    assert cells_left(cells, cells_of_file(path, setup, 4)) == (Cell(model="cnn", rate="1gbit", delay="0ms"),)
    with pytest.raises(ValueError, match="cannot stand side by side"):
        cells_of_file(path, setup, 2)


class _Hosts:
    """Links that answer as told."""

    def __init__(self, found_bytes_per_s):
        self.found, self.topologies = found_bytes_per_s, []

    def reshape(self, topology):
        if topology.hosts[0].delay_s == 1.0:
            raise CannotEmulateError("no such delay.")
        self.topologies.append(topology)

    def check_links(self):
        host = self.topologies[-1].hosts[0]
        figures = {"wanted_bytes_per_s": host.send_bytes_per_s, "found_bytes_per_s": self.found}
        return [LinkReport(source="a", target="b", wanted_round_trip_s=0.0, found_round_trip_s=0.0, **figures)]


CELLS_OF_ITS_OWN = (Cell(model="cnn", rate="10mbit", delay="0ms"), Cell(model="cnn", rate="10mbit", delay="1s"))
GRID = Setup(mode="grid", models=("cnn",), arms=("compute",), cells=CELLS_OF_ITS_OWN)


def _conductor(folder, hosts, kept, setup=GRID, limits=None):
    progress = Progress(watched=True)
    return NetworkController(
        setup=setup, num_hosts=2, cluster=hosts, limits=limits, folder=folder, progress=progress, keep=kept.append
    )


def _say(conductor, **record):
    conductor.take(0, MARK + json.dumps(record))


def test_networks_are_set_up_as_ranks_ask_for_them_and_cells_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("pliant_bench.harness.grid.time.sleep", lambda _: None)
    hosts, kept = _Hosts(1.25e6), []
    conductor = _conductor(tmp_path, hosts, kept)
    _say(conductor, kind="want", stage=0, cell=-1)
    _say(conductor, kind="want", stage=1, cell=0)
    assert [t.hosts[1].receive_bytes_per_s for t in hosts.topologies] == [0.0, 1.25e6]
    assert stage_file(tmp_path, 1).read_text() == "go"
    _say(conductor, **CELLS[0])
    assert kept[0][0]["links_wrong"] == []
    hosts.found = 0.5e6
    _say(conductor, kind="want", stage=2, cell=0)
    _say(conductor, **CELLS[0])
    assert "4mbit instead of 10mbit" in kept[1][1]["links_wrong"][0]
    _say(conductor, kind="want", stage=3, cell=1)
    assert stage_file(tmp_path, 3).read_text() == STOP  # nobody waits for a network that cannot be
    assert isinstance(conductor.error, CannotEmulateError)


def test_a_training_is_judged_without_limits_and_its_network_comes_back(tmp_path):
    link = Link(source="host0", target="host1", bytes_per_s=1e6, latency_s=0.1, jitter_s=0.01, loss=0.01)
    limits = replace(topology_from_flags(2, "10mbit", "5ms", [], 1, 0.0), links=(link,))
    hosts, setup = _Hosts(1.25e6), Setup(mode="train", models=("cnn",), arms=("gossip(free=1)",))
    conductor = _conductor(tmp_path, hosts, [], setup=setup, limits=limits)
    _say(conductor, kind="want", stage=0, cell=OPEN)
    _say(conductor, kind="want", stage=1, cell=0)
    assert hosts.topologies == [without_limits(limits), limits]
    assert stage_file(tmp_path, 1).read_text() == "go"


def test_ranks_number_their_requests_and_learn_of_a_network_that_cannot_be(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(stages, "dist", SimpleNamespace(barrier=lambda: said.append("meet")))
    monkeypatch.setattr(stages, "emit", lambda kind, fields: said.append((kind, fields["stage"], fields["cell"])))
    network = stages.NetworkRequests(tmp_path)
    stage_file(tmp_path, 0).write_text("go")
    stage_file(tmp_path, 1).write_text(STOP)
    network.wait_for(OPEN)
    assert said == ["meet", ("want", 0, OPEN), "meet"]
    with pytest.raises(RuntimeError, match="network 1 could not be set up"):
        network.wait_for(3)
    monkeypatch.setattr(stages, "time", made_up_clock())
    with pytest.raises(TimeoutError, match="network 2 was asked for 120 s ago"):
        network.wait_for(0)


def test_a_training_is_kept_as_soon_as_it_is_done(tmp_path):
    kept = []
    conductor = _conductor(tmp_path, None, kept)
    _say(conductor, kind="alone", step_s=0.1)
    assert kept == []
    _say(conductor, kind="train", arm="ddp")
    assert [r["kind"] for r in kept[0]] == ["alone", "train"]


def _arm(**fields):
    arm = Arm(name="x", model=None, optimizer=None, run=None)
    return type("Made", (Arm,), {k: fields.pop(k) for k in ("period", "spacing", "delay_steps")})(
        **{**vars(arm), **fields}
    )


def test_a_turn_takes_whole_periods_and_leaves_no_wait_behind():
    plain = _arm(period=1, spacing=1, delay_steps=0)
    assert [steps_of_a_turn(plain, s) for s in (5.0, 0.1, 0.001)] == [2, 8, 16]
    streaming = _arm(period=32, spacing=8, delay_steps=2)
    assert steps_of_a_turn(streaming, 5.0) == 32
    for made in range(20):
        streaming.steps_made = made
        assert (made + uncounted_steps(streaming)) % 8 >= 2
    assert uncounted_steps(_arm(period=1, spacing=1, delay_steps=1)) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_slow_rank_pauses_and_all_go_at_its_pace_unless_free(monkeypatch, rank):
    clock, speeds = made_up_clock(), torch.tensor([10.0, 10.0, 5.0])
    world = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: 3, all_reduce=lambda x: x.copy_(speeds))
    monkeypatch.setattr(rank_speed, "dist", world)
    monkeypatch.setattr(rank_speed, "time", clock)
    own = rank_speed.speed_of(0.5, 0.1)
    own.pause()
    assert clock.now_s == pytest.approx(0.1 if rank == 2 else 0.0)
    assert own.own_steps(10, unbounded=False) == 10
    assert own.own_steps(10, unbounded=True) == (6 if rank == 2 else 12)
    assert own.step_s(1, 0.1, unbounded=False) == pytest.approx(1 / 5)
    assert own.step_s(1, 0.1, unbounded=True) == pytest.approx(3 / 25)


@pytest.mark.parametrize(
    ("name", "free", "unbounded"),
    [
        ("local_sgd", False, False),
        ("async_average", True, True),
        ("gossip(free=1)", True, True),
        ("bounded_staleness", True, False),
        ("onebit", False, False),
    ],
)
def test_a_fast_rank_makes_more_steps_only_where_no_bound_makes_it_wait(name, free, unbounded):
    arm = Arm(name=name, model=None, optimizer=None, run=SimpleNamespace(plan=plan_of_arm(name)))
    assert (arm.free, arm.unbounded) == (free, unbounded)


@pytest.mark.extended
@pytest.mark.processes
def test_a_grid_of_loopback_measures_each_cell_once(tmp_path):
    arguments = ["--grid", "--local", "--hosts", "2", "--rates", "none", "--delays", "0ms", "--steps", "1"]
    arguments += ["--algorithms", "local_sgd,async_average", "--json", str(tmp_path / "g.json")]
    done = _bench(*arguments, "--slow-host", "0.5")
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "g.json").read_text())
    alike, slow = result["records"]
    assert list(alike["arms"])[:3] == ["compute", "ddp", "ddp-bf16"]
    assert alike["arms"]["local_sgd"]["num_steps"] % 8 == 0
    assert (alike["slow_share"], slow["slow_share"]) == (0, 0.5)
    assert all(min(arm["step_s"]) > 0 for each in (alike, slow) for arm in each["arms"].values())
    again = _bench(*arguments, "--slow-host", "0.5", "--md", str(tmp_path / "g.md"))
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "g.json").read_text())["records"] == result["records"]
    assert "who wins where" in (tmp_path / "g.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--grid", "--local"], "a grid changes links, here to 1gbit"),
        (["--grid", "--train"], "but a training was asked for too"),
        (["--grid", "--rates", ","], "the grid has no cells"),
        (["--grid", "--slow-host", "2"], "--slow-host is 2.0"),
        (["--slow-host", "0.5"], "--slow-host is for --train and --grid"),
        (["--task", "speech"], "there is no task 'speech'"),
        (["--train", "--task", "lm", "--target-accuracy", "0.5"], "--task lm has another target"),
        (["--target-perplexity", "0.5", "--task", "lm"], "even who knows every character"),
        (["--train", "--evaluate-every", "0"], "--evaluate-every is 0"),
        (["--topology", "lan", "--rate", "1gbit"], "--rate is given, but --topology lan says what the hosts are like"),
        (["--topology", "lan", "--grid"], "--grid is given, but --topology lan"),
        (["--topology", "moon"], "there is no topology 'moon'"),
        (["--train", "--lr", "-0.1"], "--lr is -0.1, but a learning rate is finite"),
        (["--lr", "0.1", "--local"], "--lr is for --train with a task of the laboratory"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    assert sentence in str(_bench(*arguments).exception)
