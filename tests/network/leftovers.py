"""Processes and links that an emulation has left, if any."""

import subprocess
import sys
from pathlib import Path

from waiting import until

__all__ = ["MARK", "PLIANT", "links", "marked", "settles"]

PLIANT = [sys.executable, "-m", "pliant.cli.main"]
MARK = "PLIANT_TEST_MARK"
"""Variable that all processes of a test inherit; a namespace vanishes with the last process in it."""


def marked(mark: str) -> list[str]:
    """Return the command lines of processes that have inherited this mark; other runs on this machine are not ours."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has just ended
            continue
    return found


def links() -> list[str]:
    """Return the names of the machine's own links."""
    said = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return sorted(line.split(":")[1] for line in said.splitlines())


def settles(mark: str) -> None:
    """Wait until nothing that the test has started is left."""
    until(lambda: not marked(mark), lambda: marked(mark))
