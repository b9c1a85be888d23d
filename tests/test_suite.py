"""What no test of this suite does: measure time, wait for luck, try again, or stay away without a reason."""

import ast
import re
import runpy
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("tests", "bench/tests") for path in (ROOT / folder).rglob("*.py"))
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"}
FOLDER = attrgetter("parent")
FOLDERS = {str(folder.relative_to(ROOT)): [*paths] for folder, paths in groupby(sorted(FILES, key=FOLDER), FOLDER)}


def is_clock(node):
    """Whether a call reads a clock of the module `time`, or of `datetime`."""
    function = node.func if isinstance(node, ast.Call) else None
    match function:
        case ast.Attribute(value=ast.Name(id="time"), attr=name):
            return name in CLOCKS
        case ast.Attribute(value=ast.Name(id="datetime"), attr="now"):
            return True
        case ast.Name(id=name):
            return name in CLOCKS - {"time"}
    return False


def mentions(tree, names):
    return any(is_clock(n) or (isinstance(n, ast.Name) and n.id in names) for n in ast.walk(tree))


def faults(source: str) -> list[str]:
    """Say what a file of tests does that it must not do, with lines."""
    found = []
    tree = ast.parse(source)
    reads_a_clock = mentions(tree, ())
    for scope in ast.walk(tree):
        if not reads_a_clock or not isinstance(scope, (ast.FunctionDef, ast.Module)):
            continue
        timed = set()
        for _ in range(3):  # what follows from a reading of a clock, in a few steps
            for node in ast.walk(scope):
                value = getattr(node, "value", None)
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and value and mentions(value, timed):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    timed |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
                called = node.func if isinstance(node, ast.Call) else None
                kept = isinstance(called, ast.Attribute) and called.attr == "append"
                if kept and any(mentions(argument, timed) for argument in node.args):
                    timed |= {n.id for n in ast.walk(called.value) if isinstance(n, ast.Name)}
        if isinstance(scope, ast.FunctionDef):
            asserts = (n for n in ast.walk(scope) if isinstance(n, ast.Assert))
            found += [f"line {n.lineno} asserts on elapsed time" for n in asserts if mentions(n.test, timed)]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="sleep")):
                found.append(f"line {node.lineno} sleeps; wait for what is to happen with waiting.until")
            case ast.ImportFrom(module="time", names=names) if any(n.name == "sleep" for n in names):
                found.append(f"line {node.lineno} sleeps; wait for what is to happen with waiting.until")
            case ast.Attribute(attr="flaky") | ast.keyword(arg="reruns"):
                found.append(f"line {node.lineno} tries again; a test holds at once")
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr=("skip" | "skipif" | "xfail") as name):
                calls = [c for c in ast.walk(tree) if isinstance(c, ast.Call) and c.func is node]
                if not any(k.arg == "reason" for c in calls for k in c.keywords):
                    found.append(f"line {node.lineno} has {name} without a reason")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="pytest"), attr=("skip" | "xfail") as name)):
                if not node.args and not node.keywords:
                    found.append(f"line {node.lineno} has {name} without a reason")
            case ast.Call(func=ast.Attribute(attr="importorskip")) if not any(k.arg == "reason" for k in node.keywords):
                found.append(f"line {node.lineno} has importorskip without a reason")
    return sorted(set(found))


@pytest.mark.parametrize("folder", FOLDERS)
def test_time_decides_nothing(folder):
    found = {path.name: faults(path.read_text()) for path in FOLDERS[folder] if path.name != "waiting.py"}  # waits
    assert {name: its for name, its in found.items() if its} == {}


def test_no_two_files_have_one_name():
    """Else pytest, which knows them by it, would run only one."""
    names = [path.name for path in FILES if path.name.startswith("test_")]
    assert [name for name in set(names) if names.count(name) > 1] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def test():\n    start = time.monotonic()\n    assert time.monotonic() - start < 5", "asserts on elapsed"),
        (
            "def test():\n    a = perf_counter()\n    b = work() - a\n    took = 2 * b\n    assert took < 1",
            "asserts on",
        ),
        ("def test():\n    all_s.append(time.time() - t)\n    assert max(all_s) < 1", "asserts on elapsed time"),
        ("def test():\n    time.sleep(1)", "sleeps"),
        ("from time import sleep", "sleeps"),
        ("pytestmark = pytest.mark.flaky(reruns=2)", "tries again"),
        ("@pytest.mark.skip\ndef test(): ...", "has skip without a reason"),
        ("@pytest.mark.skipif(True)\ndef test(): ...", "has skipif without a reason"),
        ("def test():\n    pytest.skip()", "has skip without a reason"),
        ("pytest.importorskip('numpy')", "has importorskip without a reason"),
    ],
)
def test_each_fault_is_seen(source, fault):
    assert any(fault in each for each in faults(source))


def test_what_is_allowed_is_not_a_fault():
    sound = "def test():\n    start = time.monotonic()\n    print(start)\n    assert clock.now_s == 3"
    assert faults(sound) == []
    assert faults("@pytest.mark.skipif(old, reason='torch 2.11 has none')\ndef test():\n    pytest.skip('why')") == []


def test_a_sample_of_cases_meets_each_value():
    """Of 46 collectives on 4 sizes each collective once, and each size as often; of one argument, every fourth."""
    sample = runpy.run_path(str(ROOT / "conftest.py"))["sample"]
    cases = [
        SimpleNamespace(originalname="law", callspec=SimpleNamespace(indices={"name": k % 46, "size": k // 46}))
        for k in range(184)
    ]
    met = [case.callspec.indices for case in sample(cases, 4)]
    assert sorted(each["name"] for each in met) == [*range(46)]
    assert {sum(each["size"] == size for each in met) for size in range(4)} == {11, 12}
    row = [each["name"] for each in (case.callspec.indices for case in sample(cases[:46], 4))]
    assert row == [*range(3, 46, 4), 0]


def test_emulated_hosts_are_where_the_script_looks_for_them():
    """`scripts/test` collects one folder of Pliant's tests, and one of the laboratory's, for what is marked so."""
    script = (ROOT / "scripts" / "test").read_text()
    marked = {path.parent for path in FILES if re.search(r"mark\.(netns|idle)\b", path.read_text())}
    folders = {str(path.relative_to(ROOT)) for path in marked - {Path(__file__).parent}}
    assert folders == {"tests/network", "bench/tests/chaos"}
    assert all(f" {folder} " in script for folder in folders)
