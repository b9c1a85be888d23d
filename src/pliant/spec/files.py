"""Records to JSON and back: a format version, unknown names refused, files written atomically."""

import dataclasses
import functools
import hashlib
import json
import os
import tempfile
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pliant.spec.reading import parse_json, read_text, shortened

__all__ = ["LATER", "canonical_hash", "from_json", "load", "save", "to_json", "write_atomically"]

FORMAT = 1
LATER = types.MappingProxyType({"later": True})
"""Metadata of a field that came later: where it has its default it is not written, so that records of before keep their
text, and plans their hash, which results and checkpoints refer to."""
R = TypeVar("R")


def to_json(record: Any, *, indent: int | None = None) -> str:
    """Write a frozen record as JSON text with its kind and the format version; the same record gives the same text."""
    body = {"pliant": type(record).__name__, "format": FORMAT, **_plain(record)}
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(body, indent=indent, separators=separators, sort_keys=indent is None, allow_nan=False)


def from_json(kind: type[R], text: str) -> R:
    """Read a record back. Raises ValueError, naming both sides, for another kind or format or an unknown field."""
    try:
        body = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; a {kind.__name__} was expected.") from None
    if not isinstance(body, dict) or body.get("pliant") != kind.__name__:
        found: Any = body.get("pliant") if isinstance(body, dict) else type(body).__name__
        raise ValueError(f"the file holds {shortened(found)}, but a {kind.__name__!r} was asked for.")
    if body.get("format") != FORMAT:
        raise ValueError(f"the file has format {shortened(body.get('format'))}, this Pliant reads format {FORMAT}.")
    return _build(kind, {k: v for k, v in body.items() if k not in ("pliant", "format")}, kind.__name__)


def canonical_hash(record: Any) -> str:
    """Return 16 hexadecimal digits, the same on every rank and in every process for equal records."""
    return hashlib.sha256(to_json(record).encode()).hexdigest()[:16]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file.

    Raises:
        ValueError: The target is there and no ordinary file: a rename would put one in the place of, say, /dev/null.

    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not an ordinary file, but a result replaces what has its name; name a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp made it private; a result is as readable as any other file
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def save(record: Any, path: str | Path) -> None:
    """Save a record as readable JSON, atomically."""
    write_atomically(Path(path), to_json(record, indent=2) + "\n")


def load(kind: type[R], path: str | Path) -> R:
    """Load a record. Raises ValueError, which names the file, for all that `from_json` and `read_text` refuse."""
    text = read_text(path)
    try:
        return from_json(kind, text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        written = [
            f for f in dataclasses.fields(value) if not (f.metadata == LATER and getattr(value, f.name) == f.default)
        ]
        return {f.name: _plain(getattr(value, f.name)) for f in written}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in cast(Mapping[Any, Any], value).items()}
    return value


def _build(kind: Any, value: Any, where: str) -> Any:
    """Turn plain JSON into the type that a field asks for; `where` is the path for the error sentence."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build_record(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) == 1:
            return _build(inner[0], value, where)
        # A number or a word, as in the settings of a gene: JSON tells them apart.
        wanted = " or ".join(a.__name__ for a in inner)
        _demand(type(value) in inner or (type(value) is int and float in inner), where, f"of type {wanted}", value)
        return value
    if origin is tuple:
        _demand(isinstance(value, list), where, "a list", value)
        items = arguments[0] if arguments[-1] is Ellipsis else None
        kinds = [items] * len(value) if items is not None else list(arguments)
        _demand(len(value) == len(kinds), where, f"a list of {len(kinds)}", value)
        return tuple(_build(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if origin in (dict, Mapping):
        _demand(isinstance(value, dict), where, "an object", value)
        return {k: _build(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin is typing.Literal:
        known = any(type(value) is type(a) and value == a for a in arguments)
        _demand(known, where, f"one of {', '.join(map(str, arguments))}", value)
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str, bool):
        _demand(type(value) is kind, where, f"of type {kind.__name__}", value)
    return value


def _build_record(kind: Any, value: Any, where: str) -> Any:
    _demand(isinstance(value, dict), where, "an object", value)
    hints = _hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise ValueError(f"{where} has no field {shortened(unknown[0])}; it has {', '.join(sorted(names))}.")
    needed = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(needed - set(value))
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}.")
    return kind(**{k: _build(hints[k], v, f"{where}.{k}") for k, v in value.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _demand(holds: bool, where: str, wanted: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{where} must be {wanted}, but is {shortened(found)}.")
