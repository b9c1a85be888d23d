"""Base of a plan's nodes: what travels, when, and what becomes of gradients."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from pliant.spec.codecs import CodecKind, CodecSpec, codec_names
from pliant.spec.ranges import check_ranges
from pliant.spec.target import Target
from pliant.spec.timing import Pace, Timing

__all__ = [
    "NODES",
    "Exchange",
    "Feedback",
    "Kind",
    "Level",
    "default_of",
    "require",
    "require_codec",
    "require_timing",
    "text_of",
]

Kind = Literal["gradients", "momentum", "weights"]
"""Gradients and momenta travel before the optimizer's step, weights (or how far they have come) between steps."""
Feedback = Literal["none", "worker", "both", "difference"]
"""Who keeps what a codec loses: nobody, the worker, the owner of a chunk as well; or differences travel."""
Level = Literal["host", "rack"]
"""Group of ranks with faster links inside than to others: a host, or a rack of hosts."""

NODES: dict[str, type["Exchange"]] = {}
"""Name -> class of all nodes, as JSON and the grammar name them."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Base of the nodes: how one group of parameters is synchronized. Frozen, and valid once it is made.

    ``str(node)`` is its text in the grammar, `pliant.parse` reads it back; JSON has its type and what differs from the
    defaults. Unless a node says otherwise, these are the answers of one that exchanges gradients in every step.
    """

    made_by: ClassVar[str] = ""
    """Module and class that carry it out, such as ``executors.gossip:GossipExecutor``, in `pliant.algorithms`: called
    with the node and the executors of its children."""

    def __init_subclass__(cls) -> None:
        if cls.made_by:  # else it is a base of nodes
            NODES[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check the ranges of the fields; a node that has rules about several fields adds them."""
        check_ranges(self)

    @property
    def kind(self) -> Kind:
        """Kind of what travels."""
        return "gradients"

    @property
    def children(self) -> tuple["Exchange", ...]:
        """Nodes inside, in the order of the fields."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(value for value in values if isinstance(value, Exchange))

    def walk(self) -> Iterator["Exchange"]:
        """Yield this node and all inside it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def core(self) -> "Exchange":
        """Node that exchanges, without the combinators around it; after a warm-up, if there is one."""
        return self

    @property
    def timing(self) -> Timing:
        """Steps at which the exchange happens."""
        return Timing()

    @property
    def early_timing(self) -> Timing:
        """When it happens during the warm-up, if there is one."""
        return self.timing

    def timing_at(self, step: int) -> Timing:
        """Return the timing in a step: that of the warm-up, or what follows it."""
        return self.early_timing if step < self.timing.until_step else self.timing

    @property
    def payload_codec(self) -> CodecSpec | None:
        """Codec of what travels, after a warm-up; None for plain numbers, factors and blocks."""
        codec = getattr(self, "codec", None)
        return codec if isinstance(codec, CodecSpec) else None

    @property
    def coding(self) -> str:
        """Name under which a workload has the error of what travels; "" where at most rounding to 16 bits is lost."""
        codec = self.payload_codec
        return "" if codec is None or codec.facts.kind == "cast" else str(codec)

    @property
    def error_feedback(self) -> Feedback:
        """Place where losses are kept, after a warm-up."""
        return "none"

    @property
    def ratio_target(self) -> Target | None:
        """Target for which a controller sets the ratio; None if it stays as it is."""
        return None

    @property
    def ratio(self) -> float | None:
        """Share that blocks or a sparsifier send, which a controller may set; None without such."""
        return None

    @property
    def divides_budget(self) -> bool:
        """Whether one budget of bytes is divided among all that comes in a bucket, best the whole model."""
        return False

    @property
    def slices_freely(self) -> bool:
        """Whether any consecutive elements may be exchanged by themselves, each slice among ranks of its own.

        Then nothing depends on where parameters begin, and what is kept is one number for each element.
        """
        return False

    @property
    def spares_small(self) -> bool:
        """Whether small parameters are better averaged exactly, as a plan made of the name alone does."""
        return self.error_feedback != "none" and self.kind == "gradients"

    @property
    def works_in_float32(self) -> bool:
        """Whether gradients are brought to float32 first, since something of them is kept or coded."""
        return True

    @property
    def exchanges_weights(self) -> bool:
        """Whether weights are exchanged between steps, and gradients stay with their rank (or its host)."""
        return self.kind == "weights"

    @property
    def gives_mean(self) -> bool:
        """Whether the result is a mean of what was given, up to errors that are kept, so that changes can be averaged.

        Blocks that depend on the loss, and momenta, are none.
        """
        return self.kind == "gradients" and not self.has_owners

    @property
    def replaces_momentum(self) -> bool:
        """Whether what comes is a momentum, for optimizers without their own; where they are adaptive, exact means."""
        return False

    @property
    def needs_anchor(self) -> bool:
        """Whether it must know the weights that a rank set out from, beside the changes that it averages."""
        return False

    @property
    def differs_by_rank(self) -> bool:
        """Whether ranks get different results, so that an outer optimizer's point and momentum are a rank's own."""
        return any(child.differs_by_rank for child in self.children)

    @property
    def has_owners(self) -> bool:
        """Whether each parameter has an owner, who alone steps it."""
        return False

    @property
    def steps_beside(self) -> bool:
        """Whether owners step copies of what they own, beside what a rank computes, once gradients have come."""
        return False

    @property
    def staleness_bound(self) -> int | None:
        """Steps that a rank may be ahead of the slowest, where owners take gradients as they come; None elsewhere."""
        return None

    @property
    def meets_in_pairs(self) -> bool:
        """Whether weights are exchanged by two ranks at a time, each at the step that it is in."""
        return False

    @property
    def averages_freely(self) -> bool:
        """Whether all ranks' weights are averaged at a free pace."""
        return self.exchanges_weights and self.timing.pace == "free" and not self.meets_in_pairs

    @property
    def weights_may_diverge(self) -> bool:
        """Whether the weights of ranks may differ, and gradients stay with their rank in backward."""
        return self.exchanges_weights or self.staleness_bound is not None

    @property
    def needs_links(self) -> bool:
        """Whether it must know the network's links, for which it makes schedules when training starts."""
        return getattr(self, "schedule", "ring") == "auto" or any(child.needs_links for child in self.children)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels that it must know, from the inside out: groups of ranks, groups of those; none if all are alike."""
        return next((child.levels for child in self.children if child.levels), ())

    @property
    def averages_in_host(self) -> bool:
        """Whether gradients are averaged inside each host or rack in every step, while those exchange weights."""
        return False

    def leaves_gradients(self, step: int) -> bool:
        """Say whether a gradient stays with its rank in backward, as what is exchanged is exchanged between steps."""
        between = self.weights_may_diverge or self.steps_beside
        return between and not self.averages_in_host and step >= self.timing.until_step

    @property
    def keeps_gradients(self) -> bool:
        """Whether something of gradients is kept from step to step, so that their scale must not change unseen."""
        return self.error_feedback != "none" and not self.weights_may_diverge

    def __str__(self) -> str:
        return text_of(self)


def require(holds: bool, node: str, sentence: str) -> None:
    """Raise ValueError with the node's type and the sentence unless it holds."""
    if not holds:
        raise ValueError(f"invalid {node}: {sentence}")


def require_codec(codec: CodecSpec | None, node: str, *kinds: CodecKind) -> None:
    """Raise ValueError unless a node can carry the codec."""
    fits = codec is None or codec.facts.kind in kinds
    require(fits, node, f"codec must be one of {', '.join(codec_names(*kinds))}, got {codec}.")


def require_timing(pace: Pace, delay_steps: int, period: int, node: str) -> None:
    """Raise ValueError for a delay that does not fit the period or the pace."""
    require(
        0 <= delay_steps <= period,
        node,
        f"delay_steps must be from 0 to the period of {period}, got {delay_steps}: a later result would come after the "
        "next exchange.",
    )
    require(
        pace == "lockstep" or delay_steps == 0,
        node,
        f"delay_steps must be 0 at a free pace, where results are used when they are there, got {delay_steps}.",
    )


def text_of(x: Any, *, brief: bool = False) -> str:
    """Return a node or a value in the grammar, without defaults; if brief, what is long is as its `brief` says."""
    if isinstance(x, CodecSpec):
        return str(x)
    if brief and hasattr(x, "brief"):
        return f"<{x.brief}>"
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        own = ((f, getattr(x, f.name)) for f in fields(x))
        inside = [f"{f.name}={text_of(v, brief=brief)}" for f, v in own if v != default_of(f)]
        name = type(x).__name__
        return f"{name}({', '.join(inside)})" if inside or not isinstance(x, Exchange) else name
    if isinstance(x, tuple):
        return f"({''.join(text_of(v, brief=brief) + ', ' for v in typing.cast(tuple[Any, ...], x))})"
    if isinstance(x, Mapping):
        pairs = typing.cast(Mapping[str, Any], x).items()
        return "{" + ", ".join(f"{k!r}: {text_of(v, brief=brief)}" for k, v in pairs) + "}"
    return repr(int(x)) if isinstance(x, float) and x.is_integer() else repr(x)


def default_of(own: "dataclasses.Field[Any]") -> Any:
    """Return a field's default; MISSING if it has none."""
    return own.default if own.default_factory is dataclasses.MISSING else own.default_factory()
