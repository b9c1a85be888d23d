"""What long jobs of benchmarks/ take for done, and what they write where a trial did not go as it should."""

import importlib
import json
import multiprocessing.context
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of a folder of benchmarks, many of which have modules of the same names."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(multiprocessing.context.ForkServerContext, "set_forkserver_preload", lambda *_: None)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # which a job sets
    for name in _of_benchmarks():
        monkeypatch.delitem(sys.modules, name)

    def load_one(folder, name):
        sys.path.insert(0, str(_FOLDER / folder))
        return importlib.import_module(name)

    yield load_one
    for name in _of_benchmarks():
        del sys.modules[name]


def _of_benchmarks():
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return [name for name, file in files.items() if file and _FOLDER in Path(file).parents]


ABOUT = {"cell": "pooling 1", "hosts": 4, "batch": 1024, "seed": 0}
LINE = {
    **ABOUT,
    "rate": "1gbit",
    "arms": {"pliant": []},
    "refused": [{"arm": "torchrec planner", "why": "it does not fit"}],
    "left out": [
        {"arm": "plain rows", "rate": "1gbit", "why": "20 s"},
        {"arm": "slow", "rate": "1mbit", "why": "60 s"},
    ],
}


@pytest.mark.parametrize(
    ("about", "rate", "arms", "found"),
    [
        (ABOUT, "1gbit", ["pliant", "torchrec planner", "plain rows"], True),
        (ABOUT, "100mbit", ["pliant"], False),
        ({**ABOUT, "seed": 1}, "1gbit", ["pliant"], False),
        ({**ABOUT, "hosts": 8}, "1gbit", ["pliant"], False),
        (ABOUT, "1gbit", ["pliant", "pliant lazy"], False),
        (ABOUT, "1gbit", ["slow"], False),
    ],
)
def test_a_line_of_embeddings_is_taken_for_what_was_measured_alone(load, about, rate, arms, found):
    assert load("recsys", "hosts").has([LINE], about, rate, arms) is found


def test_sizes_of_messages_that_a_link_lacks_are_measured(load, monkeypatch, tmp_path, capsys):
    job, path, asked = load("network", "slow_start"), tmp_path / "F.jsonl", []

    def fake(rate, delay, sizes):
        asked.append(sizes)
        times = {"warm_s": [0.2], "paused_s": [0.3], "delay_s": 0.125}
        return [{"connections": 1, "bytes": size, **times} for size in sizes]

    monkeypatch.setattr(job, "measure", fake)
    for sizes in (["131072"], ["131072", "1048576"], ["1048576"]):
        command = ["slow_start.py", "--jsonl", str(path), "--on", "50mbit,125ms", "--bytes", *sizes]
        monkeypatch.setattr(sys, "argv", command)
        job.main()
    assert asked == [[131072], [1048576]]
    assert len(path.read_text().splitlines()) == 2
    shown = capsys.readouterr().out.rpartition("# Slow start")[2]
    assert "| 50mbit, 125ms | 1 | 128 |" in shown
    assert "| 50mbit, 125ms | 1 | 1024 |" in shown


def test_shared_memory_is_left_by_the_rank_whose_whole_number_it_has(load, tmp_path):
    kills = load("sharded", "kills")
    for name in ("left/a.pt", "shm/torch_123_9_0", "shm/torch_1234_9_0", "shm/psm_7123ab"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    said = {0: [{"kind": "begun", "pid": 123}], 1: [], 2: [{"kind": "step", "step": 0}]}
    assert kills.left_by(tmp_path, said, tmp_path / "shm") == ["a.pt", "torch_123_9_0"]


class FakeRanks:
    """Ranks that have told so much, one time after the other; the last is told for ever."""

    script = ()

    def __init__(self, folder, port, **options):
        self._at = 0

    def told(self, rank):
        return self.script[min(self._at, len(self.script) - 1)]

    def wait_for_steps(self, rank, steps, within_s):
        return self.told(rank).get("steps", 0) >= steps

    def sleep(self, seconds):
        self._at += 1

    def log(self, rank):
        return f"rank {rank} says why"

    def wait(self, ranks, until_s):
        return True

    def signal(self, rank, number):
        pass

    end = kill = lambda self: None


def _told(at_s):
    return {"rank": 0, "at_s": at_s, "steps": 100 * at_s, "exchanges": 10 * at_s}


FAILED = {"rank": 0, "at_s": 3.0, "ended": "CommError", "lost": [3], "error": "rank 3 is lost"}


@pytest.mark.parametrize(
    ("script", "kind"),
    [([{}], "not begun"), ([FAILED], "not begun"), ([_told(1.0), _told(2.0), FAILED], "stop"), ([_told(1.0)], "stop")],
)
def test_a_stop_after_which_ranks_fail_has_a_line(load, monkeypatch, tmp_path, capsys, script, kind):
    job, made, path = load("network", "async_faults"), [], tmp_path / "F.jsonl"
    monkeypatch.setattr(FakeRanks, "script", script)
    monkeypatch.setattr(job, "Ranks", lambda *given, **options: made.append(FakeRanks(*given, **options)) or made[-1])
    monkeypatch.setattr(job.time, "sleep", lambda seconds: made[-1].sleep(seconds))
    monkeypatch.setattr(sys, "argv", ["async_faults.py", "stop", "--seconds", "4", "--results", str(path)])
    job.main()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == [kind] * len(job.IN_PAIRS)
    assert all(line["logs"][1] == "rank 1 says why" and not line.get("passed") for line in lines)
    assert ("not as it should be" in capsys.readouterr().out) == (kind == "stop")


def test_messages_of_another_size_are_other_trials(load, monkeypatch, tmp_path):
    job, asked = load("network", "striping"), []
    found = {"warm_s": [1.0], "first_s": [], "paused_s": [], "found": 8, "connect_s": 1.0}
    monkeypatch.setattr(job, "run", lambda trial, options: asked.append(trial["bytes"]) or found)
    for size in ("1000", "2000", "1000"):
        words = [str(tmp_path / "F.jsonl"), "--links", "1gbit:50ms", "--connections", "8", "--arms", "exchange"]
        monkeypatch.setattr(sys, "argv", ["striping.py", *words, "--bytes", size])
        job.main()
    assert asked == [1000, 2000]


def test_trainings_of_other_lengths_are_other_ones_and_not_of_the_table(load, monkeypatch, tmp_path, capsys):
    job, asked = load("planner", "cold_start"), []

    def fake(name, seed, given, cache):
        asked.append((given.steps, cache))
        return {"arm": name, "seed": seed, **job.about_of(given), "time_to_target_s": float(given.steps)}

    monkeypatch.setattr(job, "train", fake)
    for steps in ("10", "20", "10"):
        monkeypatch.setattr(sys, "argv", ["cold_start.py", str(tmp_path / "F"), "--seeds", "1", "--steps", steps])
        job.main()
    assert [steps for steps, _ in asked] == [10] * 6 + [20] * 6
    assert len(set(asked)) == 2
    assert asked[0][1] != asked[-1][1]  # the first one with a cache finds nothing there
    assert "| choco | 10.0 s | 1.00 | 1 |" in capsys.readouterr().out.rpartition("| arm |")[2]


def test_predictions_over_links_of_another_delay_are_refused(load, monkeypatch, tmp_path, capsys):
    path = tmp_path / "F.jsonl"
    path.write_text(json.dumps({"kind": "arm", "rate": "1gbit", "model": "cnn", "algorithm": "bf16"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["predictions.py", "--jsonl", str(path), "--delay", "5ms"])
    with pytest.raises(SystemExit):
        load("house", "predictions").main()
    assert "is of links with 0ms, not 5ms; give another --jsonl." in capsys.readouterr().err


KILLED = {"kind": "kill", "seed": 1, "number": 1, "algorithm": "choco(free=1)"}
LISTED = {
    ("sharded", "kills"): ("run --jsonl {out}", {"seed": 1, "number": 3}, "0 shards", "99 of 100"),
    ("lifecycle", "exits"): ("run --trials {trials}", {"seed": 1, "number": 0}, "1 ", "199 of 200"),
    ("lifecycle", "leaks"): ("run --only gossip", {"kind": "steps", "algorithm": "ddp"}, "ddp, cycles", "3 of 4"),
    ("network", "async_faults"): ("run --trials {trials}", KILLED, "0 gossip(free=1)", "99 of 100"),
    ("quality", "steps_ratio"): ("--out {out} --only curve/lstm/*", {}, "curve/lstm/", None),
    ("tasc", "accuracy"): ("--out {out} --short --seeds 1", {}, "", "18 of 18"),
    ("mutants", "mutants"): ("run --out {out} --limit 1", {}, "", "150 of 150"),
}
TRIALS = {"exits": "exits_seed1.jsonl", "async_faults": "async_kills_seed1.jsonl"}


@pytest.mark.parametrize("job", LISTED, ids="/".join)
def test_what_is_left_is_said_and_nothing_is_carried_out(load, monkeypatch, tmp_path, capsys, job):
    words, line, first, left = LISTED[job]
    out = tmp_path / "lines.jsonl"
    out.write_text(json.dumps({"kind": "run", **line}) + "\n" if line else "")
    words = words.format(out=out, trials=_FOLDER / job[0] / TRIALS.get(job[1], "")).split()
    words += [] if str(out) in words else ["--results", str(out)]
    monkeypatch.setattr(sys, "argv", [job[1], *words, "--list"])
    before = out.read_text()
    load(*job).main()
    *names, told = capsys.readouterr().out.splitlines()
    assert names[0].startswith(first)
    assert told == f"{left or f'{len(names)} of {len(names)}'} trials are left."
    assert out.read_text() == before
