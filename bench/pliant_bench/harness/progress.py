"""Progress of a benchmark for a person: a bar per arm on a terminal, a line per event elsewhere."""

import json
import threading
import time
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pliant_bench.harness.setup import MARK

__all__ = ["Progress"]


class Progress:
    """Sorts what ranks print into records, progress and last words."""

    def __init__(self, *, watched: bool) -> None:
        self.records: list[dict[str, Any]] = []
        self._watched = watched
        self._lock = threading.Lock()  # a thread per rank reads, one more draws
        self._start_s = time.monotonic()
        self._note = "starting the workers ..."
        self._arms: dict[tuple[str, int], dict[str, Any]] = {}
        self._words: dict[int, list[str]] = {}

    def take(self, rank: int, line: str) -> None:
        """Take one line that a rank has printed."""
        with self._lock:
            if line.startswith(MARK):
                self._take_record(json.loads(line.removeprefix(MARK)))
            else:
                self._words.setdefault(rank, []).append(line)

    def note(self, text: str) -> None:
        """Say what has happened."""
        self.take(0, MARK + json.dumps({"kind": "note", "text": text}))

    def last_words(self, rank: int) -> str:
        """Return the end of what a rank printed besides records."""
        return "\n".join(self._words.get(rank, [])[-25:])

    def _take_record(self, record: dict[str, Any]) -> None:
        if record["kind"] == "note":
            self._note = record["text"]
        elif record["kind"] == "progress":
            self._arms[record["arm"], record["seed"]] = record
            self._note = (
                f"{record['arm']} seed {record['seed']}: step {record['step']}/{record['total']}, "
                f"{record['time_s']:.0f} s, loss {record['loss']:.3f}, {record['score']}"
            )
        else:
            self.records.append(record)
            return
        if not self._watched:
            print(f"{time.monotonic() - self._start_s:5.0f} s  {self._note}", flush=True)

    def __rich__(self) -> Group:
        with self._lock:
            table = Table("arm", "seed", "steps", "training", "loss", "score", box=None)
            for (arm, seed), p in self._arms.items():
                bar = ProgressBar(total=p["total"], completed=p["step"], width=30)
                table.add_row(arm, str(seed), bar, f"{p['time_s']:.1f} s", f"{p['loss']:.3f}", p["score"])
            clock = Text(f"{time.monotonic() - self._start_s:5.0f} s  {self._note}")
            return Group(table, clock) if self._arms else Group(clock)
