"""With which a rank says what it does: lines of JSON that a test or a benchmark reads while it trains."""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["DiaryWriter", "Regroups"]


class DiaryWriter:
    """Appends lines of JSON, each with the time on the clock that all processes of a machine share."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, kind: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write a line by one write, so that a kill leaves it whole or cuts off the last."""
        line = json.dumps({"kind": kind, "at_s": time.monotonic(), **(fields or {})}) + "\n"
        os.write(self._file, line.encode())


class Regroups(logging.Handler):
    """Notes when an elastic run has made a new group."""

    def __init__(self, diary: DiaryWriter) -> None:
        super().__init__(logging.INFO)
        self._diary = diary

    def emit(self, record: logging.LogRecord) -> None:
        self._diary.say("regrouped", {"text": record.getMessage()})
