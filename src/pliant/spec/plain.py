"""Frozen records to plain JSON values and back."""

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any, cast

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import NODES, Exchange, default_of
from pliant.spec.reading import shorten

__all__ = ["LATER", "build_record", "plain"]

LATER = types.MappingProxyType({"later": True})
"""Metadata of a field that came later: where it has its default it is not written, so that records of before keep their
text, and their hash, which results and checkpoints refer to."""
_EXACT = 1 << 53
"""Up to this, a float holds every whole number."""
_ALWAYS = ("rules", "exchange")
"""Fields of a plan that are written whatever they hold."""


def plain(value: Any, *, brief: bool) -> Any:
    """Return a record as JSON values.

    Args:
        value: A record, or what its fields hold.
        brief: Leave out all that has its default, not only what came later. Nodes always say their type.

    """
    if isinstance(value, CodecSpec):
        return {"type": value.name, **plain(value.settings, brief=brief)}
    if brief and isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)  # 2000 and 2000.0 are one setting, and give one text
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {"type": type(value).__name__} if isinstance(value, Exchange) else {}
        own = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return tag | {f.name: plain(v, brief=brief) for f, v in own if not _left_out(f, v, brief=brief)}
    if isinstance(value, (tuple, list)):
        return [plain(v, brief=brief) for v in cast(tuple[Any, ...], value)]
    if isinstance(value, Mapping):
        return {str(k): plain(v, brief=brief) for k, v in cast(Mapping[Any, Any], value).items()}
    return value


def _left_out(own: "dataclasses.Field[Any]", value: Any, *, brief: bool) -> bool:
    return (brief or own.metadata == LATER) and own.name not in _ALWAYS and value == default_of(own)


def build_record(kind: Any, value: Any, where: str) -> Any:
    """Return a record of a kind from JSON values; `where` is its path for the error.

    Raises:
        ValueError: A field is not known, missing or of another type, or the record refuses it.

    """
    _demand(isinstance(value, dict), where, "an object", value)
    if issubclass(kind, Exchange):
        kind, value = _node(kind, value, where)
    hints = _hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise ValueError(f"{where} has no field {shorten(unknown[0])}; it has {', '.join(sorted(names))}.")
    missing = sorted(f.name for f in dataclasses.fields(kind) if f.name not in value and default_of(f) is _MISSING)
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}.")
    return kind(**{k: _build(hints[k], v, f"{where}.{k}") for k, v in value.items()})


_MISSING = dataclasses.MISSING
_REGISTRY = "pliant.algorithms.registry"
"""Module that imports the nodes which have a file of their own. A plan that names one may be the first to need it."""


def _node(kind: Any, value: dict[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    name = value.get("type")
    if isinstance(name, str) and name not in NODES:
        importlib.import_module(_REGISTRY)
    if not isinstance(name, str) or name not in NODES:
        raise ValueError(f"{where} has the type {shorten(name)}, which no node has; there are {', '.join(NODES)}.")
    _demand(issubclass(NODES[name], kind), where, f"of type {kind.__name__}", name)
    return NODES[name], {k: v for k, v in value.items() if k != "type"}


def _codec(value: Any, where: str) -> CodecSpec:
    _demand(isinstance(value, dict) and isinstance(value.get("type"), str), where, "an object with a type", value)
    settings = {k: _build(float, v, f"{where}.{k}") for k, v in value.items() if k != "type"}
    return CodecSpec(name=value["type"], settings=settings)


def _build(kind: Any, value: Any, where: str) -> Any:
    """Turn plain JSON into the type that a field asks for; `where` is the path for the error sentence."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is CodecSpec:
        return _codec(value, where)
    if dataclasses.is_dataclass(kind):
        return build_record(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) == 1:
            return _build(inner[0], value, where)
        records = [a for a in inner if dataclasses.is_dataclass(a)]
        if records and isinstance(value, dict):
            keys = cast(dict[str, Any], value).keys()
            return build_record(min(records, key=lambda a: len(keys - _hints(a).keys())), value, where)
        words = [a for a in inner if typing.get_origin(a) is typing.Literal]
        if words:
            return _build(words[0], value, where)
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


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _demand(holds: bool, where: str, wanted: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{where} must be {wanted}, but is {shorten(found)}.")
