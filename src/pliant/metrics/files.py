"""Rows in a file: comma-separated values, or a JSON object a line."""

import csv
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pliant.spec.files import write_atomically

__all__ = ["CsvFile", "JsonLines", "read_rows"]

_COLUMNS = (
    *("step", "unix_s", "step_s", "exposed_s", "sent_bytes", "received_bytes", "bytes_vs_ddp", "plan_switches"),
    *("plan", "residual_norm"),
)


class CsvFile:
    """Comma-separated values with a header; ``unix_s`` is the time of a row. A file that is there is continued.

    A value with a new name rewrites the file once, with one column more. Each row is on the disk when it was logged.

    Args:
        path: The file; its folder is made if it is not there.

    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._columns = Path(path), list(_COLUMNS)
        self._file: Any = None

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Append the row of a step."""
        row = {"step": step, "unix_s": round(time.time(), 3), **values}
        if self._file is None:
            self._file = self._open()
        if new := [name for name in row if name not in self._columns]:
            self._columns += new
            self._file = self._rewrite()
        csv.DictWriter(self._file, self._columns).writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> Any:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            held = {name: None for row in _read_csv(self._path) for name in row}
            self._columns += [name for name in held if name not in self._columns]
        return self._rewrite()

    def _rewrite(self) -> Any:
        """Return the file with all columns, open for more rows; whatever fails, the rows that were there stay."""
        self.close()
        rows = _read_csv(self._path) if self._path.exists() else []
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self._path, text.getvalue())
        return self._path.open("a", newline="", encoding="utf-8")


class JsonLines:
    """One JSON object a line; ``unix_s`` is the time of a row. A file that is there is continued.

    Args:
        path: The file; its folder is made if it is not there.

    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: Any = None

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Append the row of a step."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps({"step": step, "unix_s": round(time.time(), 3), **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_rows(path: Path) -> list[dict[str, float | str]]:
    """Read the rows of either kind of file, while it is being written too. Raises ValueError, naming the file."""
    try:
        if path.suffix == ".csv":
            rows = [{name: _value(text) for name, text in row.items()} for row in _read_csv(path)]
        else:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a log of run.log_to() ({error}).") from None
    if not all(isinstance(row, dict) and "step" in row for row in rows):
        raise ValueError(f"{path} is no log of run.log_to(): it has lines without a step.")
    return rows


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is not None and "step" not in reader.fieldnames:
            raise ValueError(f"{path} is no log of run.log_to(): its first line names no column step")
        return [{name: text for name, text in row.items() if isinstance(name, str) and text} for row in reader]


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
