"""Finished runs in a JSON-lines file: a line is written whole or not at all, so that a command can go on."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def say_left(left: Sequence[str], num: int) -> None:
    """Print the names of the trials that are left, and how many of all they are."""
    print("\n".join([*left, f"{len(left)} of {num} trials are left."]))


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, without a line that was cut off."""
    found: list[Record] = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the last words of a process that was killed
    return found


def append_record(path: Path, record: Record) -> None:
    """Append a record by one write, after a line that may have been cut off, and have it on disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        cut_off = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, ("\n" * cut_off + json.dumps(record) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


class Book:
    """What has been measured. A record's kind, and what it is about, are its key; the first of a key counts.

    Args:
        path: The file; it is made with its folder if it is not there.

    """

    KEY = ("kind", "task", "optimizer", "arm", "ratio", "seed", "steps")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[tuple[Any, ...], Record] = {}
        for record in read_records(path) if path.exists() else ():
            self.records.setdefault(self.key_of(record), record)

    @classmethod
    def key_of(cls, record: Record) -> tuple[Any, ...]:
        """Return what a record is about."""
        return tuple(record.get(name) for name in cls.KEY)

    def find(self, **about: Any) -> Record | None:
        """Return the record of a key, if there is one."""
        return self.records.get(self.key_of(about))

    def of_kind(self, kind: str) -> list[Record]:
        """Return all records of a kind, in the order in which they were made."""
        return [record for record in self.records.values() if record["kind"] == kind]

    def add(self, record: Record) -> Record:
        """Append a record, see `append_record`; return that of its key which counts."""
        append_record(self._path, record)
        return self.records.setdefault(self.key_of(record), record)
