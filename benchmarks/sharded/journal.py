"""Lines of a job, the machine that they were made on, and the ranks that make them."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pliant.network import EmulatedCluster
from pliant.spec.files import write_atomically
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.setup import MARK

sys.path.append(str(Path(__file__).parents[1]))

from chaos.judge import named_in
from house.versions import commit_of, machine
from tasc.accuracy_book import Book, say_left

__all__ = ["Lines", "json_lines", "named_in", "place", "run_ranks", "say_left", "show"]

_LAST_WORDS = 40


class Lines(Book):
    """Trials, one a line; what has a line is not run again.

    Args:
        path: The file.
        key: Names of what a trial is about.

    """

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self._key = tuple(key)
        super().__init__(path)

    def key_of(self, record: dict[str, Any]) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(record.get(name) for name in self._key)

    def has(self, *about: Any) -> bool:
        """Say whether there is a line about this."""
        return about in self.records


def place() -> dict[str, str]:
    """Return the commit, and the machine with its load."""
    return {"commit": commit_of("HEAD"), **machine()}


def run_ranks(
    cluster: EmulatedCluster | LocalHosts, script: str, argv: Sequence[str], take: Callable[[dict[str, Any]], None]
) -> None:
    """Run a script, of this folder if its path is relative, once per rank, and hand over the records of rank 0.

    Raises:
        RuntimeError: A rank failed; its last words are in the message.

    """
    words: list[str] = []

    def on_line(rank: int, line: str) -> None:
        if rank == 0 and line.startswith(MARK):
            take(json.loads(line.removeprefix(MARK)))
        elif line.strip():
            words.append(f"[{rank}] {line}")

    results = cluster.run([sys.executable, str(Path(__file__).parent / script), *argv], on_line=on_line)
    if any(result.exit_code for result in results):
        codes = [result.exit_code for result in results]
        raise RuntimeError("\n".join([f"{script} failed on ranks with {codes}:", *words[-_LAST_WORDS:]]))


def json_lines(cluster: EmulatedCluster, argv: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """Run a command once per rank; return rank 0's lines of JSON, which must be some, and show all others."""
    said: list[dict[str, Any]] = []

    def on_line(rank: int, text: str) -> None:
        if rank == 0 and text.startswith("{"):
            said.append(json.loads(text))
        elif text:
            print(f"[{rank}] {text}", flush=True)

    results = cluster.run(argv, on_line=on_line, timeout_s=timeout_s)
    if any(result.exit_code for result in results) or not said:
        sys.exit(f"ranks failed: {[result.exit_code for result in results]}.")
    return said


def show(text: str, path: Path | None) -> None:
    """Print a table, and write it to a file if there is one."""
    print(text)
    if path is not None:
        write_atomically(path, text)
