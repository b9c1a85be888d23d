"""Families that are made from the nodes of a plan: a class of nodes with the values that its fields may be tried with.

What a field may be tried with stands beside the field (`Tried`), that of a codec's setting in the table of codecs; a
field that holds a node may be tried with each node that holds no other. Whatever the node itself refuses is left out.
So a new node, a new field or a new codec is in the search without any list of the planner's.
"""

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pliant.spec import CODECS, NODES, AllReduce, BetweenHosts, CodecSpec, Exchange, text_of
from pliant.spec.ranges import Tried

__all__ = ["NodeFamily", "coded_specs", "make_node", "node_families", "tried_values"]

_Values = dict[str, tuple[Any, ...]]
_BY_SWITCH = (BetweenHosts,)
"""Nodes that a genome has a switch for."""


@cache
def coded_specs() -> tuple[CodecSpec, ...]:
    """Return every codec with each of the settings that may be tried; of casts to equally many bits the first."""
    found: list[CodecSpec] = []
    casts = {facts.bits: name for name, facts in reversed(list(CODECS.items())) if facts.kind == "cast"}
    for name, facts in CODECS.items():
        if facts.kind == "cast" and casts[facts.bits] != name:
            continue
        grids = {key: setting.tried for key, setting in facts.settings.items() if setting.tried}
        for values in itertools.product(*grids.values()):
            found.append(CodecSpec(name=name, settings=dict(zip(grids, values, strict=True))))
    return tuple(found)


def tried_values(kind: type, leaves: Callable[[], tuple[Exchange, ...]] | None = None) -> _Values | None:
    """Return the values that the fields of a record may be tried with, by name; None if a node cannot be made of them.

    A field of a record inside is named as ``graph.kind``; a codec or a node inside is a value itself. Every codec and
    every node is among the values, also those that the record refuses.

    Args:
        kind: A node, or a record inside one.
        leaves: What a field that holds a node is tried with; None for every node that holds no other.

    """
    found: _Values = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for own in dataclasses.fields(kind):
        tried = _tried_of(hints[own.name], own.name, leaves or _leaves)
        if not tried and own.default is own.default_factory is dataclasses.MISSING:
            return None
        found |= tried
    return found


def _tried_of(hint: Any, name: str, leaves: Callable[[], tuple[Exchange, ...]]) -> _Values:
    """Return the values of one field by its type; nothing if it keeps its default."""
    stated = [each.values for each in getattr(hint, "__metadata__", ()) if isinstance(each, Tried)]
    if stated:
        return {name: stated[0]}
    if hint is CodecSpec:
        return {name: coded_specs()}
    if CodecSpec in typing.get_args(hint):
        return {name: (None, *coded_specs())}
    if hint is Exchange:
        return {name: leaves()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not issubclass(hint, Exchange):
        return {f"{name}.{inner}": values for inner, values in (tried_values(hint, leaves) or {}).items()}
    return {}


@cache
def _leaf_kinds() -> tuple[type[Exchange], ...]:
    """Return the nodes that hold no other."""
    kinds = (NODES[name] for name in sorted(NODES))
    return tuple(kind for kind in kinds if not any(map(_holds_a_node, typing.get_type_hints(kind).values())))


@cache
def _leaves_of(kind: type[Exchange]) -> Mapping[str, Exchange]:
    """Return a node that holds no other with each of the values that may be tried, by its text."""
    values = tried_values(kind) if kind in _leaf_kinds() else None
    return {text_of(node): node for node in _made(kind, values)} if values is not None else {}


@cache
def _leaves() -> tuple[Exchange, ...]:
    """Return every node that holds no other, with each of the values that may be tried."""
    return tuple(node for kind in _leaf_kinds() for node in _leaves_of(kind).values())


def _leaf(text: str) -> Exchange | None:
    """Return such a node by its text, without making those of other classes; None if it is not tried."""
    kind = NODES.get(text.partition("(")[0])
    return None if kind is None else _leaves_of(kind).get(text)


def _holds_a_node(hint: Any) -> bool:
    return any(isinstance(each, type) and issubclass(each, Exchange) for each in (hint, *typing.get_args(hint)))


def _made(kind: type[Exchange], values: _Values) -> Iterator[Exchange]:
    nodes = (_node_of(kind, dict(zip(values, each, strict=True))) for each in itertools.product(*values.values()))
    return (node for node in nodes if node is not None)


def make_node(kind: type[Exchange], values: Mapping[str, Any]) -> Exchange:
    """Return a node with the values of its fields. Raises ValueError, from the node, for what does not go together."""
    own = {name: value for name, value in values.items() if "." not in name}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if "." in name:
            record, _, key = name.partition(".")
            inside.setdefault(record, {})[key] = value
    records = {field.name: field.default_factory for field in dataclasses.fields(kind) if field.name in inside}
    made = {name: dataclasses.replace(typing.cast(Any, records[name])(), **each) for name, each in inside.items()}
    return kind(**own, **made)


@dataclass(frozen=True)
class NodeFamily:
    """Exchanges by one class of node, which differ in the values of its fields."""

    node: type[Exchange]

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.node.__name__

    @cached_property
    def grids(self) -> Mapping[str, tuple[float | str, ...]]:
        """Field -> values as numbers and texts, from the mildest to the strongest where they are numbers."""
        return {name: tuple(map(_setting, each)) for name, each in self._values.items()}

    def __call__(self, settings: Mapping[str, float | str]) -> Exchange:
        """Return the node. Raises ValueError for a value that is not tried, or from the node."""
        if set(settings) != set(self._plain):
            raise ValueError(f"{self.name} has the settings {', '.join(self._plain)}, not {', '.join(settings)}.")
        return make_node(self.node, {name: self._meant(name, value) for name, value in settings.items()})

    def at_least(self, name: str, value: float | str) -> tuple[float | str, ...]:
        """Return the values of a setting that are at least as strong: of a text it alone, as texts have no order."""
        if isinstance(value, str):
            return (value,)
        grid = self.grids[name]
        return grid[grid.index(value) :]

    @cached_property
    def holds(self) -> str:
        """Name of the field that holds a node; "" if none does."""
        return next((name for name, each in self._plain.items() if isinstance(next(iter(each.values())), Exchange)), "")

    def takes(self, inside: Exchange) -> bool:
        """Say whether a node may be inside, with the first of the other values."""
        first = {name: next(iter(each.values())) for name, each in self._plain.items()}
        return _node_of(self.node, {**first, self.holds: inside}) is not None

    @cached_property
    def others(self) -> Mapping[str, tuple[float | str, ...]]:
        """Grids of the fields but for that which holds a node, which needs all nodes to be made."""
        return {name: tuple(each) for name, each in self._plain.items() if name != self.holds}

    @cached_property
    def _plain(self) -> Mapping[str, Mapping[float | str, Any]]:
        """Field -> values by numbers and texts, with an exact average for a node inside."""
        found = tried_values(self.node, lambda: (AllReduce(),)) or {}
        return {name: {_setting(value): value for value in each} for name, each in found.items()}

    @cached_property
    def _values(self) -> _Values:
        """Values of the fields; of nodes inside those that the node takes with the first of its other values."""
        values = {name: tuple(each.values()) for name, each in self._plain.items()}
        if self.holds:
            values[self.holds] = tuple(filter(self.takes, _leaves()))
        return values

    def _meant(self, name: str, value: float | str) -> Any:
        inside = _leaf(str(value)) if name == self.holds else None
        if inside is None and (name == self.holds or value not in self._plain[name]):
            raise ValueError(f"{self.name} is not tried with {name} {value}.")
        return inside or self._plain[name][value]


def node_families() -> dict[str, NodeFamily]:
    """Return a family of each class of node that can be made of what its fields may be tried with, by name."""
    kinds = (NODES[name] for name in sorted(NODES) if NODES[name] not in _BY_SWITCH)
    return {kind.__name__: NodeFamily(kind) for kind in kinds if tried_values(kind, lambda: (AllReduce(),))}


def _node_of(kind: type[Exchange], values: Mapping[str, Any]) -> Exchange | None:
    """Return a node with the values of its fields, or None if it refuses them."""
    try:
        return make_node(kind, values)
    except ValueError:  # the node's own checks
        return None


def _setting(value: Any) -> float | str:
    return value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else text_of(value)
