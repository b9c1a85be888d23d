"""Types that algorithms take: nodes or values of the user's own algorithms; codecs by value or by name."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from pliant.spec import AllReduce, CodecSpec, Exchange, OwnerScheduling, Schedule, Scheduling, Topology, from_json
from pliant.spec.reading import read_text

__all__ = [
    "AlgorithmLike",
    "CodecLike",
    "HasGroups",
    "HasNode",
    "NamedCodec",
    "OwnerScheduleLike",
    "ScheduleLike",
    "as_codec_spec",
    "as_owner_schedule",
    "as_schedule",
    "averaging_of",
    "node_of",
    "ranks_of",
]


class HasNode(Protocol):
    """A value that a node of a plan stands for, such as an algorithm of the user's own."""

    @property
    def node(self) -> Exchange:
        """Node of a plan that builds an equal value."""
        ...


class NamedCodec(Protocol):
    """A codec by value: a frozen dataclass of `pliant.codecs`."""

    name: ClassVar[str]


class HasGroups(Protocol):
    """The part of a torch optimizer that algorithms read."""

    param_groups: list[dict[str, Any]]


AlgorithmLike = Exchange | HasNode
"""A node, as `pliant.qsgd()` returns it, or a value of a registered algorithm, which has one."""
CodecLike = NamedCodec | CodecSpec | Exchange
"""A codec by value, by name, or as an algorithm that is one codec."""
ScheduleLike = Scheduling | str | Path
"""A way for sums, or the file of one: of a topology, or of a schedule."""
OwnerScheduleLike = OwnerScheduling | str | Path
"""The same for sums that go to owners."""


def node_of(algorithm: AlgorithmLike) -> Exchange:
    """Return the node of what was given.

    Raises:
        TypeError: It is neither a node nor has one.

    """
    if isinstance(algorithm, Exchange):
        return algorithm
    node = getattr(algorithm, "node", None)
    if not isinstance(node, Exchange):
        raise TypeError(
            f"an algorithm was expected, but got {algorithm!r}; give a value such as pliant.qsgd(), or one of your own "
            "whose `node` names it."
        )
    return node


def averaging_of(algorithm: AlgorithmLike | None) -> Exchange:
    """Return the node that averages what local steps have changed: an exact mean if None. Raises as `node_of`."""
    return AllReduce() if algorithm is None else node_of(algorithm)


def as_codec_spec(codec: CodecLike | None) -> CodecSpec | None:
    """Return how a plan names a codec that was given by value, by name, or as an algorithm that is one codec.

    Raises:
        ValueError: The algorithm has no codec.

    """
    if codec is None or isinstance(codec, CodecSpec):
        return codec
    if isinstance(codec, Exchange):
        if codec.payload_codec is None:
            raise ValueError(f"a codec was expected, but {codec} has none; give one such as qsgd(bits=4) or int4.")
        return codec.payload_codec
    fields = dataclasses.fields(cast("type", type(codec)))
    return CodecSpec(name=codec.name, settings={f.name: getattr(codec, f.name) for f in fields})


def as_schedule(schedule: ScheduleLike) -> Scheduling:
    """Return how sums go over the network, with the content of a file in the place of its name.

    Raises:
        ValueError: It is neither a word nor a file of a topology or a schedule.

    """
    return cast(Scheduling, _scheduling(schedule, "ring"))


def as_owner_schedule(schedule: OwnerScheduleLike) -> OwnerScheduling:
    """Return how sums go to owners, and weights back, with the content of a file in the place of its name.

    Raises:
        ValueError: It is neither a word nor a file of a topology or a schedule.

    """
    return cast(OwnerScheduling, _scheduling(schedule, "direct"))


def _scheduling(schedule: ScheduleLike | OwnerScheduleLike, plain: str) -> Any:
    if isinstance(schedule, (Topology, Schedule)) or schedule in (plain, "auto"):
        return schedule
    try:
        text = read_text(Path(schedule))
    except OSError as error:
        raise ValueError(
            f"schedule={str(schedule)!r} is neither {plain!r} nor 'auto', nor a file that can be read ({error}); name "
            "the file that `pliant probe` or `pliant schedule` has written."
        ) from None
    return from_json(Schedule if '"rounds"' in text else Topology, text)


def ranks_of(optimizer: HasGroups) -> list[int]:
    """Return the ranks to which groups of an optimizer, such as Dion, orthogonalize: each once, the least first."""
    return sorted({int(group["rank"]) for group in optimizer.param_groups if "rank" in group})
