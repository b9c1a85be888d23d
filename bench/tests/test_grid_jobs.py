"""Jobs of the wider grid, benchmarks/grid: the committed list, resuming, and the join of steps and trainings."""

import importlib
import json
import statistics
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/grid."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(_FOLDER)])
    return lambda name: importlib.import_module(f"grid.{name}")


def _write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _step(cell, arm, *step_s, number=0):
    return {"kind": "step", "cell": cell, "arm": arm, "number": number, "step_s": step_s, "free": False}


def _training(kind, arm, seed, steps, final, **more):
    """Return a training that crosses 85 % after so many steps."""
    curve = [{"step": step, "accuracy": 0.85 + (step - steps) / 1000} for step in (0, 200)]
    if kind == "free":
        curve, more = [{**point, "time_s": point["step"] / 8} for point in curve], {"step_s": 0.1, **more}
    return {"kind": kind, "arm": arm, "seed": seed, "curve": curve, "final_accuracy": final, **more}


def test_the_committed_list_is_what_the_settings_draw(load):
    trials = load("trials")
    assert [json.loads(line) for line in trials.LIST.read_text().splitlines()] == trials.draw(trials.SEED)
    cells = trials.read("cell")
    assert all(len(trials.topology_of(cell).hosts) == trials.HOSTS for cell in cells)
    (uneven,) = [trials.topology_of(cell) for cell in cells if cell["cell"].endswith("uneven")]
    assert statistics.mean(link.bytes_per_s for link in uneven.links) == pytest.approx(trials.MESH_MEAN_BYTES_PER_S)


def test_a_trial_with_a_line_is_not_run_again_even_if_it_failed(load, tmp_path, capsys):
    job, results = load("job"), tmp_path / "results.jsonl"
    trials = [{"kind": "step", "cell": "c", "arm": arm, "number": 0} for arm in ("ddp", "gossip", "choco")]
    path = _write(tmp_path / "trials.jsonl", trials)
    first = job.Job(results, {"step": 60.0}, most=2, trials=path)
    assert first.left("step") == trials
    first.add(trials[0], {"step_s": [0.1]})
    first.add(trials[1], {"error": "CommError: rank 2 is lost."})
    assert not first.has_time()
    with results.open("a") as file:
        file.write('{"kind": "step", "cell": "c", "arm": "cho')  # a process that was killed
    again = job.Job(results, {"step": 60.0}, trials=path)
    assert again.left("step") == trials[2:]
    assert again.has_time()
    assert again.text().startswith("step: 2 done, 1 of them failed; 1 left")
    again.add(trials[2], {"step_s": [0.1]})
    assert job.Job(results, {"step": 60.0}, trials=path).left("step") == []
    assert "rank 2 is lost" in capsys.readouterr().out


def test_the_gain_is_a_ratio_of_products_and_its_spread_covers_seeds_and_turns(load):
    join = load("join")
    steps = [
        _step("c", "ddp-bf16", 1.0, 1.2, 1.1),
        _step("c", "choco", 0.5, 0.4, 0.6),
        _step("c", "async_average", 9.0),
    ]
    steps.append(_step("c", "ddp-bf16", 5.0, number=1))  # a control, which does not count
    steps += [_step("c", "allreduce", 2.0), _step("c", "post_local_sgd", 0.1)]
    lines = [_training("curve", "ddp-bf16", k, 100 + k, 0.88) for k in range(3)]
    lines += [_training("curve", "choco", k, 110, 0.878 + k / 1000) for k in range(3)]
    lines += [_training("curve", "post_local_sgd", k, 110, 0.88) for k in range(3)]
    lines += [_training("curve", "late", 0, 110, 0.7)]
    curves = join.curves_of(lines)
    free = {"c": join.curves_of([_training("free", "async_average", k, 120, 0.87, cell="c") for k in range(3)])}
    found = join.entries(steps, curves, free)
    choco = found["c", "choco"]
    assert choco.to_target_s == pytest.approx(0.5 * 110)
    assert choco.gain == pytest.approx(1.1 * 101 / (0.5 * 110))
    assert (choco.least, choco.most) == pytest.approx((1.0 * 100 / (0.6 * 110), 1.2 * 102 / (0.4 * 110)))
    assert choco.keeps
    paced = found["c", "async_average"]  # its own time on this network, not a product
    assert (paced.step_s, paced.to_target_s, paced.gain) == pytest.approx((0.1, 12.0, 1.1 * 101 / 12.0))
    assert not paced.keeps
    beside = [_training("free", "async_average", k, 120, 0.87, base_step_s=2.0) for k in range(3)]
    (paced,) = (
        e for e in join.entries(steps, curves, {"c": join.curves_of(beside)}).values() if e.arm == "async_average"
    )
    assert paced.gain == pytest.approx(2.0 * 101 / 12.0)  # over DDP as it was on the same machine
    assert found["c", "post_local_sgd"].to_target_s == pytest.approx(70 * 2.0 + 40 * 0.1)  # exact for a fifth of 350
    assert curves["late"].mean_steps is None  # two seeds are missing


def test_the_learning_rate_has_worse_neighbours(load):
    curves, trials = load("curves"), load("trials")
    needed = dict(zip(trials.LEARNING_RATES, (150, 120, 90, 130, 180, 190), strict=True))
    lines = [_training("rate", "ddp-bf16", k, steps, 0.88, lr=lr) for lr, steps in needed.items() for k in trials.SEEDS]
    assert curves.best_rate(lines) == trials.LEARNING_RATES[2]
    with pytest.raises(ValueError, match="are missing"):
        curves.best_rate(lines[1:])
    worse = [_training("rate", "ddp-bf16", r["seed"], 1 / r["lr"], 0.88, lr=r["lr"]) for r in lines]
    with pytest.raises(ValueError, match="is the last; widen"):
        curves.best_rate(worse)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--free", "--cells", "moon"), "argument --cells: invalid choice: 'moon' (choose from"),
        (("--free", "--arms", "ddp"), "argument --arms: invalid choice: 'ddp' (choose from"),
        (("--free", "--seeds", "9"), "argument --seeds: invalid choice: 9 (choose from"),
        (("--arms", "async_average"), "--cells, --arms and --seeds are for --free"),
    ],
)
def test_cells_arms_and_seeds_that_are_not_there_are_named(load, tmp_path, monkeypatch, capsys, more, sentence):
    results = ("--results", str(tmp_path / "results.jsonl"), "--curves", str(tmp_path / "curves.jsonl"))
    monkeypatch.setattr(sys, "argv", ["curves.py", *results, *more])
    with pytest.raises(SystemExit):
        load("curves").main()
    assert sentence in capsys.readouterr().err


def test_trials_are_narrowed_to_cells_arms_and_seeds(load, tmp_path):
    job = load("job").Job(tmp_path / "results.jsonl", {"free": 1.0})
    (one,) = job.left("free", ["1gbit 0ms"], ["gossip(free=1)"], [2])
    assert one == {"kind": "free", "cell": "1gbit 0ms", "arm": "gossip(free=1)", "seed": 2}
    assert 3 * len(job.left("free", seeds=[0])) == len(job.left("free")) == 180


def test_page_and_tables_show_what_is_there(load, tmp_path, monkeypatch, capsys):
    page = load("page")
    steps = [{**_step("100mbit 50ms", arm, s, s), "links_wrong": []} for arm, s in _STEP_S.items()]
    steps.append({"kind": "step", "cell": "100mbit 50ms", "arm": "tasc", "number": 0, "error": "ValueError: no."})
    lines = [_training("curve", arm, k, 100, 0.88) for arm in ("ddp-bf16", "choco") for k in range(3)]
    for each in (*steps, *lines):
        each |= {"at": "2026-11-25 12:00:00 UTC", "load": 0.5, "commit": "abc"}
    before = [{**steps[-2], "step_s": [9.0, 9.0]}]  # measured again since, in the second file
    files = (_write(tmp_path / "before.jsonl", before), _write(tmp_path / "s.jsonl", steps))
    written = {name: tmp_path / f"page.{name}" for name in ("md", "html", "json")}
    options = [text for name, path in written.items() for text in (f"--{name}", str(path))]
    options += ["--steps", *map(str, files), "--curves", str(_write(tmp_path / "c.jsonl", lines))]
    monkeypatch.setattr(sys, "argv", ["page.py", *options])
    page.main()
    text = written["md"].read_text()
    assert "| 100mbit 50ms | 100ms | 1s | 90% | - | 100.0 s | choco | 200ms | 20.0 s | 5.00 (5.00 to 5.00) |" in text
    assert "| 100mbit 50ms | tasc | ValueError: no. |" in text
    assert "- free: `none`" in text
    assert text == capsys.readouterr().out.rstrip("\n") + "\n"
    assert written["html"].read_text().count('class="figure"') == 2
    (cell,) = json.loads(written["json"].read_text())["records"]
    assert (cell["rate"], cell["delay"]) == ("100mbit", "25ms")


def test_arms_at_a_free_pace_have_a_table_of_their_own(load):
    join, tables = load("join"), load("tables")
    steps = [{**_step("c", arm, s), "links_wrong": []} for arm, s in (("ddp-bf16", 1.0), ("choco(free=1)", 9.0))]
    curves = join.curves_of([_training("curve", "ddp-bf16", k, 100, 0.88) for k in range(3)])
    free = {"c": join.curves_of([_training("free", "choco(free=1)", k, 50, 0.875, base_step_s=1.5) for k in range(3)])}
    found = join.entries(steps, curves, free)
    shown = tables.tables(
        tables.Joined(cells=["c"], steps=steps, curves=curves, free=free, confirmed={}, entries=found)
    )
    (head, rows), *others = ([head, rows] for title, _, head, rows in shown if title == "at a free pace")
    assert not others
    assert head == ["cell", "ddp-bf16: step", "choco(free=1)"]
    assert rows == [["c", "1.5s", "100ms, 30.00x, -0.50"]]


_STEP_S = {"compute": 0.1, "ddp-bf16": 1.0, "choco": 0.2}
