"""Records to JSON and back: a format version, unknown names refused, files written atomically."""

import hashlib
import json
import os
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pliant.spec.plain import build_record, plain
from pliant.spec.reading import parse_json, read_text, shorten

__all__ = ["canonical_hash", "from_json", "load", "require_places", "save", "to_json", "write_atomically"]

FORMATS: Mapping[str, int] = types.MappingProxyType({"SyncPlan": 2})
"""Kind of record -> format that is written; 1 for those that are not named. From 2 on defaults are left out, so that a
new field changes no text and no hash, and a changed default is a new format."""
OLDER_KINDS: Mapping[str, str] = types.MappingProxyType({"Genome": "Genes"})
"""Kind of record -> the word that older files have for it."""
R = TypeVar("R")


def to_json(record: Any, *, indent: int | None = None) -> str:
    """Write a frozen record as JSON text with its kind and the format version; the same record gives the same text."""
    name = type(record).__name__
    version = FORMATS.get(name, 1)
    body = {"pliant": name, "format": version, **plain(record, brief=version > 1)}
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(body, indent=indent, separators=separators, sort_keys=indent is None, allow_nan=False)


def from_json(kind: type[R], text: str) -> R:
    """Read a record back. Raises ValueError, naming both sides, for another kind or format or an unknown field."""
    try:
        body = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; a {kind.__name__} was expected.") from None
    names = (kind.__name__, OLDER_KINDS.get(kind.__name__, kind.__name__))
    if not isinstance(body, dict) or body.get("pliant") not in names:
        found: Any = body.get("pliant") if isinstance(body, dict) else type(body).__name__
        raise ValueError(f"the file holds {shorten(found)}, but a {kind.__name__!r} was asked for.")
    fields = {k: v for k, v in body.items() if k not in ("pliant", "format")}
    version, found = FORMATS.get(kind.__name__, 1), body.get("format")
    earlier: Callable[[dict[str, Any]], R] | None = getattr(kind, "read_format_1", None)
    if found == 1 and version == 2 and earlier is not None:
        return earlier(fields)
    if type(found) is not int or found != version:
        known = f"format {version}" if version == 1 else f"formats 1 and {version}"
        raise ValueError(f"the file has format {shorten(found)}, this Pliant reads {known}.")
    return build_record(kind, fields, kind.__name__)


def canonical_hash(record: Any) -> str:
    """Return 16 hexadecimal digits, the same on every rank and in every process for equal records."""
    return hashlib.sha256(to_json(record).encode()).hexdigest()[:16]


def require_places(*paths: Path | None) -> None:
    """Make the folders of results, so that a file which cannot be written is named before there is something to lose.

    Args:
        paths: Files that `write_atomically` will write; None for one that nobody asked for.

    Raises:
        ValueError: One of them cannot be written.

    """
    for path in filter(None, paths):
        try:
            _require_place(path)
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise ValueError(
                f"{path} is to be written, but its folder does not take a file ({error.strerror}); name another."
            ) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file.

    Raises:
        ValueError: The target is there and no ordinary file: a rename would put one in the place of, say, /dev/null.

    """
    _require_place(path)
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


def _require_place(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not an ordinary file, but a result replaces what has its name; name a file.")
    path.parent.mkdir(parents=True, exist_ok=True)


def save(record: Any, path: str | Path) -> None:
    """Save a record as readable JSON, atomically.

    >>> import tempfile
    >>> from pliant import Graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Graph(kind="grid"), f"{folder}/graph.json")
    ...     load(Graph, f"{folder}/graph.json").kind
    'grid'
    """
    write_atomically(Path(path), to_json(record, indent=2) + "\n")


def load(kind: type[R], path: str | Path) -> R:
    """Load a record that `save` has written, such as a plan, a topology or a workload.

    Args:
        kind: Type of the record.
        path: File to read.

    Raises:
        ValueError: The file holds another kind or format, or a value out of range; the message names the file.

    >>> import tempfile
    >>> from pliant import SyncPlan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(SyncPlan(name="exact"), f"{folder}/plan.json")
    ...     load(SyncPlan, f"{folder}/plan.json").name
    'exact'

    """
    text = read_text(path)
    try:
        return from_json(kind, text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
