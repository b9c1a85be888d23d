"""The mutation job of benchmarks/mutants: drawing, applying, judging, going on. No mutant is tried here."""

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "benchmarks" / "mutants"

TEXT = "a = 1\nif x:\n    y = 2\n    z = 3\nif w:\n    y = 2\n    z = 4\n"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/mutants."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module


def made(load, name="P001", file="src/pliant/engine/comm_thread.py", old="y = 2\n", new="y = 3\n"):
    return load("mutant").Mutant(id=name, file=file, line=3, operator="number", old=old, new=new, tests=("tests/x.py",))


@pytest.mark.parametrize("line", range(7))
@pytest.mark.parametrize("new", ["", "    k = 5\n", "    k = 5\n    l = 6\n"])
def test_a_difference_is_applied_again_where_lines_have_moved(load, line, new):
    lines = TEXT.splitlines(keepends=True)
    after = "".join([*lines[:line], new, *lines[line + 1 :]])
    at, old, text = load("mutant").difference(TEXT, after)
    assert TEXT.count(old) == 1
    assert abs(at - (line + 1)) <= 1
    mutant = made(load, old=old, new=text)
    assert mutant.apply(TEXT) == after
    assert mutant.apply("first = 0\n" + TEXT + "last = 0\n") == "first = 0\n" + after + "last = 0\n"


@pytest.mark.parametrize("text", ["", TEXT, "y = 4\n"])
def test_what_is_not_there_once_is_refused(load, text):
    with pytest.raises(load("mutant").CannotApplyError, match="times, not once; the code has changed"):
        made(load).apply(text)


def test_mutants_are_read_as_they_were_written(load, tmp_path):
    mutants = [made(load), made(load, name="C001", old='"ü"\n')]
    load("mutant").write(tmp_path / "drawn.jsonl", mutants)
    assert load("mutant").read(tmp_path / "drawn.jsonl") == mutants


def test_files_come_as_often_as_their_share_of_lines(load):
    sizes = {"a": 300, "b": 10, "c": 90, "d": 600}
    draw = lambda seed: load("drawing").shares(sizes, 25, random.Random(seed))  # noqa: E731
    assert draw(1) == draw(1)
    for seed in range(20):
        found = draw(seed)
        assert len(found) == 25
        for file, size in sizes.items():
            assert abs(found.count(file) - 25 * size / 1000) < 1


def test_the_same_seed_draws_the_same_mutants_of_c(load):
    draw = lambda seed: load("drawing").draw_c(_ROOT, 6, seed)  # noqa: E731
    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)
    for mutant in first:
        text = (_ROOT / mutant.file).read_text()
        assert mutant.apply(text) != text
        assert len({mutant.id for mutant in first}) == 6


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("    x = a + 2;  // b - 1\n", {"x = a - 2;", "x = a + 3;", "x = a + 1;", ";"}),
        ("    if (a <= b && c) d();\n", {"if (a < b && c) d();", "if (a <= b || c) d();", ";"}),
        ("    int64_t *p = q;\n", set()),
        ("#define N 4\n", set()),
        ("    x = 0x1f;\n", {"x = 0x20;", "x = 0x1e;", ";"}),
    ],
)
def test_mutants_of_a_line_of_c(load, line, wanted):
    assert {text.split("//")[0].strip() for _, text in load("c_mutants").mutants(line)} == wanted


@pytest.mark.parametrize(
    ("code", "out", "verdict", "by"),
    [
        (0, "3 passed", "survived", ""),
        (None, "", "killed", "time"),
        (1, "...\nFAILED tests/a.py::test_b[2-c] - assert 1 == 2\n1 failed", "killed", "tests/a.py::test_b[2-c]"),
        (1, "FAILED tests/a.py::t[Q(a=1, b=2)] - E - x\n", "killed", "tests/a.py::t[Q(a=1, b=2)]"),
        (2, "ERROR tests/a.py - TypeError\n", "killed", "tests/a.py"),
        (-11, "Fatal Python error: Segmentation fault", "killed", ""),
        (4, "ImportError while loading conftest", "killed", ""),
    ],
)
def test_verdicts(load, code, out, verdict, by):
    outcome = load("trying").judged(code, out)
    assert (outcome.verdict, outcome.by) == (verdict, by)


def test_a_run_without_tests_kills_nothing(load):
    with pytest.raises(RuntimeError, match="found no tests"):
        load("trying").judged(4, "ERROR: file or directory not found: tests/gone.py")


def test_a_job_goes_on_where_it_stopped(load, tmp_path):
    job, mutants = load("mutants"), [made(load, name=f"P00{k}") for k in range(4)]
    lines = [
        {"id": "P000", "verdict": "killed", "by": "t", "tests": "covering"},
        {"id": "P001", "verdict": "survived", "by": "", "tests": "covering"},
        {"id": "P002", "verdict": "survived", "by": "", "tests": "covering"},
        {"id": "P002", "verdict": "survived", "by": "", "tests": "whole"},
    ]
    path = tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"id": "P003", "verd')  # killed here
    done = job.results(path)

    def ids(whole, again):
        return [m.id for m in job.due(mutants, done, whole=whole, again=again)]

    assert ids(whole=False, again=False) == ["P003"]
    assert ids(whole=False, again=True) == ["P001", "P002", "P003"]
    assert ids(whole=True, again=False) == ["P001"]
    shown = job.table(mutants, done)
    assert "| engine | 4 | 3 | 1 | 2 | 0 |" in shown
    assert "P001: survived (covering tests), src/pliant/engine/comm_thread.py:3, number" in shown
    assert "P000" not in shown


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.jsonl")), ids=lambda p: p.stem)
def test_samples_name_files_and_tests_that_are_there(load, path):
    for mutant in load("mutant").read(path):
        assert mutant.old != mutant.new
        assert mutant.tests
        for test in mutant.tests:
            assert (_ROOT / test).exists(), (mutant.id, test)


def test_every_file_that_may_be_mutated_has_tests(load):
    for folder in load("drawing").FOLDERS:
        for path in (_ROOT / "src" / "pliant" / folder).rglob("*.[cp]*"):
            if path.suffix in (".py", ".c"):
                assert all((_ROOT / test).exists() for test in load("covering").covering(str(path.relative_to(_ROOT))))


def test_the_tests_of_a_mutant_are_those_that_run_its_statement(load, tmp_path):
    text = "def f(x, y=1):\n    if (\n        x\n        > 0\n    ):\n        y = 2\n"
    text += "    return (\n        x,\n        y,\n    )\nZ = 1\n"
    notes = [
        {"test": "", "seconds": 0.0, "lines": {"src/pliant/engine/comm_thread.py": [1]}},
        {"test": "slow", "seconds": 2.0, "lines": {"src/pliant/engine/comm_thread.py": [2, 3, 6, 7, 8, 11]}},
        {"test": "quick", "seconds": 1.0, "lines": {"src/pliant/engine/comm_thread.py": [2, 3, 7]}},
        {"test": "other", "seconds": 0.5, "lines": {"src/pliant/engine/run.py": [2, 3, 7]}},
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    by_line = load("by_line").ByLine(tmp_path)

    def tests(old, new):
        return by_line.tests(made(load, old=old, new=new), text)

    assert tests("y = 2", "y = 3") == ["slow", "tests/processes"]
    assert tests("> 0", ">= 0") == ["quick", "slow", "tests/processes"]  # events come at some lines of a statement
    assert tests("        y,\n", "        x,\n") == ["quick", "slow", "tests/processes"]
    assert tests("y=1", "y=2") == ["quick", "slow", "tests/processes"]  # at import: whatever runs the file
    assert tests("Z = 1", "Z = 2") == ["quick", "slow", "tests/processes"]  # whoever has imported it
    assert by_line.seconds(tests("y=1", "y=2")) == 3.0
    with pytest.raises(load("mutant").CannotApplyError):
        tests("z", "y")
    with pytest.raises(ValueError, match="no notes of tests"):
        load("by_line").ByLine(tmp_path / "empty")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_notes_say_which_lines_a_test_runs(tmp_path):
    tests = tmp_path / "test_it.py"
    tests.write_text(
        "from pliant.codecs import MinMax8\ndef test_it():\n    MinMax8().nbytes(5)\ndef test_no():\n    pass\n"
    )
    settings = {**os.environ, "PLIANT_BY_TEST": str(tmp_path), "PYTHONPATH": str(_FOLDER)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "by_test", "-p", "no:cacheprovider", str(tests)]
    subprocess.run(command, env=settings, cwd=tmp_path, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.jsonl")
    found = {note["test"]: note["lines"] for note in map(json.loads, path.read_text().splitlines())}
    assert found["test_it.py::test_it"]["src/pliant/codecs/minmax8.py"]
    assert "src/pliant/codecs/minmax8.py" not in found["test_it.py::test_no"]
