"""PyTorch's own FSDP2 tests on a CPU with Gloo, plain and under Pliant's exact plan.

``python benchmarks/sharded/torch_tests.py --tests FOLDER --jsonl out.jsonl --md out.md``

FOLDER holds files of test/distributed/_composable/fsdp of PyTorch's repository at the tag of the torch that is here;
they are copied to a temporary folder, and never kept. As they are, tests that start processes are skipped where there
is no accelerator, by their base class; "plain" lifts that (torch_on_cpu.py). "exact" relaxes each sharded model at its
first forward pass (torch_relaxed.py), in tests that pass plain. One line a test and arm, written class by class.
"""

import argparse
import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from journal import Lines, place, show

ARMS = {"plain": "torch_on_cpu", "exact": "torch_relaxed"}
KEY = ("file", "test", "arm", "mended_in")
"""A line with "mended_in" was found before the commit that mends it: it is kept, and its test is run again."""
_WHY_CHARS = 1500


def collect(file: Path) -> dict[str, list[str]]:
    """Return class -> the names of its tests."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            found[node.name] = [name for name in names if name.startswith("test_")]
    return {name: tests for name, tests in found.items() if tests}


def run_class(file: Path, first: str, name: str, tests: Sequence[str], limit_s: float) -> dict[str, tuple[str, str]]:
    """Run tests of a class in a copy of the file that imports a module of this folder first; return how each ended."""
    with tempfile.TemporaryDirectory() as folder:
        copy, report = Path(folder) / file.name, Path(folder) / "report.xml"
        copy.write_text(f"import {first}\n{file.read_text()}")
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        argv = ["pytest", "-p", "no:cacheprovider", "--rootdir", folder, f"--junitxml={report}"]
        argv += [f"{copy.name}::{name}::{test}" for test in tests]
        try:
            done = subprocess.run(
                [sys.executable, "-m", *argv], cwd=folder, env=env, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return dict.fromkeys(tests, ("hangs", f"after {limit_s:g} s, with the rest of its class"))
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
        last = (done.stdout + done.stderr).decode(errors="replace")[-_WHY_CHARS:]
        unseen = "failed", f"pytest ended with {done.returncode}, and did not say how this one ended: {last}"
        return dict.fromkeys(tests, unseen) | {case.attrib["name"]: outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return "passed", "skipped" or "failed", and why."""
    for kind, what in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        if (found := case.find(kind)) is not None:
            text = found.text or ""
            errors = re.findall(r"^(?:E  +)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
            told = "\n".join(dict.fromkeys(errors)) if what == "failed" else found.attrib.get("message", "")
            return what, told[-_WHY_CHARS:] or text[-_WHY_CHARS:]
    return "passed", ""


def measure(lines: Lines, given: argparse.Namespace) -> None:
    """Run what has no line."""
    for file, arm in itertools.product(sorted(given.tests.glob("test_*.py")), ARMS):
        for name, tests in collect(file).items():
            left = [test for test in tests if not lines.has(file.name, f"{name}::{test}", arm, None)]
            if arm == "exact":
                left = [test for test in left if passed(lines, file.name, f"{name}::{test}")]
            while left and given.pause_while and Path(given.pause_while).exists():
                time.sleep(2)
            for test, (what, why) in (run_class(file, ARMS[arm], name, left, given.limit) if left else {}).items():
                found = {"file": file.name, "test": f"{name}::{test}", "arm": arm, "outcome": what, "why": why}
                lines.add({**found, **place()})
                print(f"{file.name}, {name}::{test}, {arm}: {what} {why[:150]!r}", flush=True)


def passed(lines: Lines, file: str, test: str) -> bool:
    """Say whether a test passes plain."""
    return lines.records.get((file, test, "plain", None), {}).get("outcome") == "passed"


def table(records: Sequence[Mapping[str, Any]], source: str, command: str) -> str:
    """Return the results as Markdown."""
    mended, records = [r for r in records if "mended_in" in r], [r for r in records if "mended_in" not in r]
    last, commits = records[-1], ", ".join(sorted({r["commit"] for r in records}))
    head = [
        "# PyTorch's FSDP2 tests under the exact plan, on a CPU with Gloo",
        "",
        f"`{command}`",
        "",
        f"{source} {last['software']}; {last['cpu']}; commits {commits}.",
        "",
        "| file | arm | tests | passed | skipped | failed | hangs |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    body = []
    for file in dict.fromkeys(r["file"] for r in records):
        for arm in ARMS:
            counts = Counter(r["outcome"] for r in records if (r["file"], r["arm"]) == (file, arm))
            cells = [counts.total(), *(counts[what] for what in ("passed", "skipped", "failed", "hangs"))]
            body.append(f"| {file} | {arm} | {' | '.join(map(str, cells))} |")
    reasons = Counter((r["arm"], r["why"]) for r in records if r["outcome"] == "skipped")
    if reasons:
        body += ["", "Skipped:", "", *(f"- {arm}: {num} because {why!r}" for (arm, why), num in reasons.items())]
    wrong = [_wrong(r) for r in records if r["outcome"] in ("failed", "hangs")]
    told = ["", "Not passed:", "", *wrong] if wrong else []
    before = [f"{_wrong(r)}; mended in {r['mended_in']}" for r in mended]
    told += ["", "Found before it was mended, and run again:", "", *before] if before else []
    return "\n".join([*head, *body, *told, ""])


def _wrong(r: Mapping[str, Any]) -> str:
    return f"- {r['arm']}: {r['test']}: {r['outcome']}: {' '.join(r['why'].split())[:400]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--source", default="", help="a sentence for the table: where the files are from")
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds that a class may take")
    parser.add_argument("--pause-while", default="", help="no test begins while this file exists")
    parser.add_argument("--table", action="store_true", help="write the table alone")
    given = parser.parse_args()
    lines = Lines(given.jsonl, KEY)
    if not given.table:
        measure(lines, given)
    argv = [word for word in sys.argv if word not in ("--source", given.source)]
    show(table(list(lines.records.values()), given.source, shlex.join(["python", *argv])), given.md)


if __name__ == "__main__":
    main()
