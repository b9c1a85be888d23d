"""Files of lines that processes side by side have written become one."""

import importlib
import json
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"
RATES = _FOLDER / "local_steps" / "rates.py"
TRIALS = _FOLDER / "local_steps" / "trials_seed1.jsonl"
MUON = {"size": "0.4M", "windows": 32, "ranks": 4, "steps": 500, "optimizer": "Muon", "algorithm": "bf16", "seed": 0}
MUON |= {"decay": "linear", "lr": 0.5}


@pytest.fixture
def merge(monkeypatch):
    """Return the command, as a function of its words."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(_FOLDER)])
    module = importlib.import_module("merge_lines")
    return lambda *words: module.main([str(word) for word in words])


def written(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_of_several_files_stand_in_the_order_of_the_list(merge, tmp_path):
    """An arm that makes two steps of the loop to one of the optimizer trains other steps and windows than its trial."""
    long, adamw = {**MUON, "steps": 5000}, {**MUON, "optimizer": "AdamW"}
    acco = {**adamw, "algorithm": "acco", "steps": 1000, "windows": 16}
    local = {**adamw, "algorithm": "local_sgd(period=32)"}
    out = written(tmp_path / "out", MUON, {**MUON, "lr": 0.25})
    one = written(tmp_path / "one", long, acco, MUON)
    two = written(tmp_path / "two", local, adamw)
    with two.open("a") as file:
        file.write('{"size": "0.4M", "wi')  # a process that was killed
    merge(out, one, two, "--key", RATES, "--trials", TRIALS)
    merged = read(out)
    assert merged == [adamw, MUON, {**MUON, "lr": 0.25}, local, acco, long]
    merge(tmp_path / "other", two, one, out, "--key", RATES, "--trials", TRIALS)
    assert read(tmp_path / "other") == merged
    merge(tmp_path / "plain", two, one, "--key", RATES)
    assert read(tmp_path / "plain") == [local, adamw, long, acco, MUON]


def test_two_lines_of_one_trial_that_differ_are_refused(merge, tmp_path, capsys):
    out = written(tmp_path / "out", {**MUON, "loss": 1.0})
    part = written(tmp_path / "part", {**MUON, "lr": 1.0}, {**MUON, "loss": 1.5})
    before = out.read_text()
    with pytest.raises(SystemExit):
        merge(out, part, "--key", RATES)
    assert "out and" in (said := capsys.readouterr().err)
    assert "have different lines of ('0.4M', 32, 4, 500, 'Muon', 'bf16', 'linear', 0.5, 0)" in said
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("part", "--key", "mesh"), "has a line without mesh; give the key of its job"),
        (("part", "gone", "--key", "lr"), "gone; give files that a job has written"),
        (("part", "--key", _FOLDER / "divided.py"), "divided.py has 0 keys, but one is needed"),
    ],
)
def test_what_cannot_be_merged_is_named(merge, tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "part", MUON)
    with pytest.raises(SystemExit):
        merge("out", *words)
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", ["grid/job.py", "dataset/measure.py", "quality/steps_ratio.py", "chaos/command.py"])
def test_the_key_of_a_job_is_read_from_its_script(merge, tmp_path, script):
    line = {"kind": "step", "cell": "c", "number": 3, "seed": 1}
    part = written(tmp_path / "part", line, {**line, "number": 4, "seed": 2})
    merge(tmp_path / "out", part, "--key", _FOLDER / script)
    assert read(tmp_path / "out") == read(part)
