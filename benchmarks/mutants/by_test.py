"""A plugin of pytest, for Python 3.12 and later: notes which lines of Pliant run in which test, and how long it takes.

One line of JSON for each test goes into the folder that PLIANT_BY_TEST names, a file for each process. What runs before
the first test, as imports do, is noted under an empty name. Processes that a test starts are not looked into.

Note: an event is switched off where it has come once, and all are switched on again with the next test, so a line costs
once a test. Threads are watched with all others; one that lives on counts for the test in which it runs.
"""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

_ROOT = str(Path(find_spec("pliant").origin).parent)
_TOOL = 4  # one that nobody has, so that coverage can count beside it
_seen: set[tuple[str, int]] = set()


def _note(code, line):
    if code.co_filename.startswith(_ROOT):
        _seen.add((code.co_filename, line))
    return sys.monitoring.DISABLE


def _write(test, seconds):
    lines = {}
    for file, line in sorted(_seen):
        lines.setdefault("src/pliant" + file.removeprefix(_ROOT), []).append(line)
    _seen.clear()
    with (Path(os.environ["PLIANT_BY_TEST"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"test": test, "seconds": round(seconds, 3), "lines": lines}) + "\n")


def pytest_configure():
    """Begin."""
    sys.monitoring.use_tool_id(_TOOL, "by_test")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, _note)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.LINE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Write what ran in a test."""
    if _seen:
        _write("", 0.0)
    sys.monitoring.restart_events()
    start_s = time.monotonic()
    try:
        return (yield)
    finally:
        _write(item.nodeid, time.monotonic() - start_s)


def pytest_unconfigure():
    """Stop, before the interpreter takes modules apart."""
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.NO_EVENTS)
    sys.monitoring.free_tool_id(_TOOL)
