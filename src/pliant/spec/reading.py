"""Text and JSON from files that anybody may have written: read, or refused with a ValueError that names the file."""

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

__all__ = ["MOST_BYTES", "made_by", "parse_json", "read_bytes", "read_json", "read_text", "require_file", "shorten"]

MOST_BYTES = 1 << 28
"""Largest text file that is read: 256 MiB. A record of 4,096 hosts, or a model's workload, is some hundred KB."""
_DEEPEST = 64
_LARGEST = (1 << 63) - 1
_SHOWN = 80


def require_file(path: str | Path) -> int:
    """Return the bytes of an ordinary file. Raises ValueError for a directory, a pipe or a device; nothing is opened.

    Raises:
        ValueError: See above; the message names the file.
        OSError: The file is not there, or may not be looked at.

    """
    found = Path(path).stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "pipe, a socket or a device"
        raise ValueError(f"{path} is a {kind}, but an ordinary file was expected; name a file.")
    return found.st_size


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what an ordinary file holds, without ever waiting for a writer.

    Raises:
        ValueError: It is no ordinary file or larger than `most_bytes`; the message names it.
        OSError: It is not there, or may not be read.

    """
    require_file(path)
    # It may have become a pipe since then: such an open must not wait, and is looked at again.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is no ordinary file any more; name one.")
        if found.st_size > most_bytes:
            raise ValueError(
                f"{path} has {found.st_size / 2**20:.0f} MiB, but of such a file at most {most_bytes >> 20} are read."
            )
        return file.read()


def read_text(path: str | Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of an ordinary file. Raises as `read_bytes` does, and ValueError for what is not UTF-8."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is not text in UTF-8 (byte {error.start}).") from None


def read_json(path: str | Path) -> Any:
    """Return what a file of strict JSON says. Raises as `read_text` and `parse_json` do; the message names the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@contextmanager
def made_by(command: str, path: str | Path) -> Generator[None]:
    """Turn what is missing or of another kind in a command's own file, which has no record, into a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not what {command} writes ({type(error).__name__}: {error}).") from None


def parse_json(text: str) -> Any:
    """Return what strict JSON says.

    Raises:
        ValueError: It is not JSON; a name stands twice in an object; a number is NaN, infinite or beyond 64 bits; text
            has half of a surrogate pair; or lists and objects lie more than 64 deep in each other.

    """
    try:
        value = json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_no_number, parse_float=_finite, parse_int=_small
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON ({error}).") from None
    except RecursionError:
        value = None
        depth = _DEEPEST + 1
    else:
        depth = _depth(value)
    if depth > _DEEPEST:
        raise ValueError(f"this is JSON nested more than {_DEEPEST} deep, which no record is.")
    return value


def shorten(value: Any) -> str:
    """Return how a value is written, without its middle if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]} ... {text[-15:]}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {shorten(twice)} stands twice in one object, so its value is not known.")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"this has {name} for a number, but numbers must be finite.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:_SHOWN]} is beyond what 64 bits hold.")
    return value


def _small(text: str) -> int:
    value = int(text) if len(text) <= 20 else _LARGEST + 1
    if abs(value) > _LARGEST:
        raise ValueError(f"the number {text[:_SHOWN]} is beyond what 64 bits hold.")
    return value


def _depth(value: Any) -> int:
    """Return how deep lists and objects lie in each other; raises ValueError for text that cannot be written."""
    depth, level = 0, [value]
    while level:
        following: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                found = cast(dict[str, Any], each)
                following += found.keys()
                following += found.values()
            elif isinstance(each, list):
                following += cast(list[Any], each)
            elif isinstance(each, str) and not each.isascii():
                _require_whole(each)
        depth += any(isinstance(each, (dict, list)) for each in level)
        level = following
    return depth


def _require_whole(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text {shorten(text)} has half of a surrogate pair, which is no character.") from None
