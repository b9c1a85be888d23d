"""Journal of what was found, a JSON object a line, each written at once: an interruption leaves it whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pliant.spec.reading import made_by, parse_json, read_text
from pliant_bench.harness.setup import Cell

__all__ = ["FILE", "Journal", "read_lines"]

FILE = "trials.jsonl"
"""Name of the file in the folder of a collection."""

_MOST_BYTES = 1 << 34
_BEGINS = '{"kind": "'
"""How each line begins, so that one that was cut off is told from what somebody else has written."""
_FREE = ("models", "rates", "delays", "slow_host", "seconds_per_trial", "timeout_s")
"""What a later command may change: other cells join those that are there, and a trial may be shorter."""


class Journal:
    """A collection's file, open at its end.

    Args:
        folder: Made if it is not there.
        settings: Those of the command; they must be those that the file began with.

    Raises:
        ValueError: The file belongs to another collection.

    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        lines = read_lines(self._path) if self._path.exists() else []
        first = next((line for line in lines if line["kind"] == "job"), None)
        if first is not None:
            with made_by("pliant collect", self._path):
                had, now = _freeze(first["settings"]), _freeze(settings)
            if had != now:
                raise ValueError(
                    f"{self._path} has a collection with {had}, but this one has {now}; give another --out folder, or "
                    "the same settings."
                )
        self._cells: dict[str, Cell] = {}
        self._done: set[tuple[Cell, int]] = set()
        with made_by("pliant collect", self._path):
            for line in lines:
                self._note(line)
        _cut_off(self._path)
        self.write({"kind": "job", "settings": dict(settings)})

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, and see to it that it is on the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._note(line)

    def done(self, cell: Cell, number: int) -> bool:
        """Say whether a cell's trial was run, well or not."""
        return (cell, number) in self._done

    def _note(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "session":
            self._cells[line["session_id"]] = Cell(**line["cell"])
        elif line["kind"] == "trial":
            self._done.add((self._cells[line["session_id"]], int(line["number"])))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a collection's file, without a last one that was cut off while it was written.

    Raises:
        ValueError: The file is not there, or a line in it is not JSON of ours.

    """
    if not path.exists():
        raise ValueError(f"there is no {path}; run pliant collect --out {path.parent} first.")
    lines: list[dict[str, Any]] = []
    *whole, last = read_text(path, most_bytes=_MOST_BYTES).split("\n")
    if not last.startswith(_BEGINS[: len(last)]):
        raise ValueError(f"{path}, line {len(whole) + 1}: pliant collect did not write it; give another folder.")
    for number, text in enumerate(whole, 1):
        try:
            line = parse_json(text)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            raise ValueError(f"{path}, line {number}: this has no kind; pliant collect did not write it.")
        lines.append(line)
    return lines


def _cut_off(path: Path) -> None:
    """Remove a last line that has no end."""
    if path.exists():
        raw = path.read_bytes()
        if raw and not raw.endswith(b"\n"):
            os.truncate(path, raw.rfind(b"\n") + 1)


def _freeze(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _FREE}
