"""Ranges of single fields, declared in their types and checked in one place."""

import dataclasses
import math
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, cast

__all__ = ["Count", "Decay", "Number", "Positive", "Quantity", "Range", "Ratio", "Share", "Tried", "check_ranges"]


@dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers that a field may have, as metadata of its type: ``Annotated[float, Range(low=0, high=1)]``.

    >>> str(Range(low=0, high=1, below=True))
    'at least 0 and below 1'
    >>> 1 in Range(low=0, high=1, below=True)
    False
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether the lower bound itself is left out."""
    below: bool = False
    """Whether the upper bound itself is left out."""
    step: int = 0
    """Number of which values must be multiples; 0 for none."""
    only: tuple[float, ...] = ()
    """The few values that there are between the bounds; empty for all."""

    def __contains__(self, value: float) -> bool:
        return (
            (self.low < value if self.above else self.low <= value)
            and (value < self.high if self.below else value <= self.high)
            and not math.isinf(value)
            and (not self.step or value % self.step == 0)
            and (not self.only or value in self.only)
        )

    def __str__(self) -> str:
        if self.only:
            return f"one of {', '.join(map(_text, self.only))}"
        multiple = f"a multiple of {self.step} " if self.step else ""
        if self.high == math.inf:
            return f"{multiple}{'above' if self.above else 'at least'} {_text(self.low)}"
        if not self.above and not self.below:
            return f"{multiple}from {_text(self.low)} to {_text(self.high)}"
        upper = f"{'below' if self.below else 'at most'} {_text(self.high)}"
        return f"{multiple}{'above' if self.above else 'at least'} {_text(self.low)} and {upper}"


@dataclass(frozen=True)
class Tried:
    """Values of a field that a search may try, from the mildest to the strongest, as metadata of its type.

    They stand beside the field's range, and the planner's space is made of them: a field without them keeps its default
    in a search, and so does a codec's setting.
    """

    values: tuple[Any, ...]


Count = Annotated[int, Range(low=1)]
"""A number of things of which there must be one."""
Number = Annotated[int, Range(low=0)]
"""A number of things, or none."""
Quantity = Annotated[float, Range(low=0)]
Positive = Annotated[float, Range(low=0, above=True)]
Share = Annotated[float, Range(low=0, high=1)]
"""A part of a whole, or none or all of it."""
Ratio = Annotated[float, Range(low=0, high=1, above=True)]
"""A part of a whole, or all of it."""
Decay = Annotated[float, Range(low=0, high=1, below=True)]
"""A factor of what was before."""


def check_ranges(record: Any) -> None:
    """Raise ValueError for the first field of a record outside of the range, or the words, that its type declares.

    A range of a tuple is one of its elements. A field of integers refuses fractions, which no plan could be read with.
    """
    kind = type(record)
    for name, accepted in _declared(kind):
        value = getattr(record, name)
        for each in cast(tuple[Any, ...], value if isinstance(value, tuple) else (value,)):
            if each not in accepted:
                said = f"one of {', '.join(map(repr, accepted))}" if isinstance(accepted, tuple) else accepted
                finite = " and finite" if each == math.inf else ""
                raise ValueError(f"invalid {kind.__name__}: {name} must be {said}{finite}, got {_text(value)}.")


@cache
def _declared(kind: type) -> list[tuple[str, "Range | _WholeNumbers | tuple[Any, ...]"]]:
    """Return the fields of a record that have a range or a few words to choose from, or are integers."""
    found: list[tuple[str, Range | _WholeNumbers | tuple[Any, ...]]] = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        metadata: tuple[Any, ...] = getattr(hint, "__metadata__", ())
        hint = hint.__origin__ if metadata else hint
        if typing.get_origin(hint) is Literal:
            found.append((name, typing.get_args(hint)))
        elif words := [a for a in typing.get_args(hint) if typing.get_origin(a) is Literal]:
            found.append((name, _WordsOrRecord(typing.get_args(words[0]))))
        found += [(name, each) for each in metadata if isinstance(each, Range)]
        kinds = typing.get_args(hint) or (hint,)
        found += [(name, _WholeNumbers())] if int in kinds and float not in kinds else []
    return found


class _WholeNumbers:
    """Whatever has no fraction, whether its type is int or not."""

    def __contains__(self, value: object) -> bool:
        return not isinstance(value, float) or value.is_integer()

    def __str__(self) -> str:
        return "a whole number"


class _WordsOrRecord(tuple[Any, ...]):
    """Words of a field that may hold a record in their place."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return dataclasses.is_dataclass(value) or super().__contains__(value)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)
