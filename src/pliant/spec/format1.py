"""Format 1 of plans: a flat record of 28 fields, in the order in which it used to be taken apart."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pliant.spec.codecs import CodecSpec
from pliant.spec.combinators import After, Delayed, Every
from pliant.spec.exchange import Exchange
from pliant.spec.gradients import (
    AllGather,
    AllReduce,
    BlockSparse,
    Custom,
    LowRank,
    ScatterGather,
)
from pliant.spec.graph import Graph
from pliant.spec.levels import BetweenHosts
from pliant.spec.momenta import CompressedMomentum, DecoupledMomentum
from pliant.spec.outer import Outer
from pliant.spec.owners import ParameterServer, Placement, ShardedOptimizer
from pliant.spec.plain import default_of
from pliant.spec.selection import Selection
from pliant.spec.target import Target
from pliant.spec.weights import CodedGossip, Gossip, LocalSteps

__all__ = ["FlatChoice", "exchange_of"]


@dataclass(frozen=True, kw_only=True)
class _Named:
    name: str
    settings: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class FlatChoice:
    """Content of a rule of format 1. Only `exchange_of` reads it."""

    what: Literal["gradient", "momentum", "weight", "change"] = "gradient"
    collective: Literal["all_reduce", "scatter_gather", "all_gather", "low_rank", "gossip", "owner", "blocks"] = (
        "all_reduce"
    )
    bandwidths: tuple[float, ...] = ()
    staleness: int = 0
    graph: Graph | None = None
    gamma: float = 0.0
    outer: Outer | None = None
    own: _Named | None = None
    codec: _Named | None = None
    selection: Selection | None = None
    feedback: Literal["none", "worker", "both", "difference"] = "none"
    momentum: float = 0.0
    signed: bool = False
    ramp_steps: int = 0
    target: Target | None = None
    every: int = 1
    stretch: float = 0.0
    fragments: int = 1
    delay_steps: int = 0
    compensation: float = 0.0
    lookahead: float = 0.0
    pace: Literal["lockstep", "free"] = "lockstep"
    weighted: bool = False
    before: "FlatChoice | None" = None
    until_step: int = 0
    chunk_bytes: int = 1 << 20
    hierarchical: bool = False
    order: Literal["ready", "at_end"] = "ready"


class _Fields:
    """A flat choice that notes which of its fields were read."""

    def __init__(self, choice: FlatChoice) -> None:
        self._choice = choice
        # Sizes of chunks were written where nothing read them; an order became the plan's.
        self._left = {
            f.name
            for f in dataclasses.fields(choice)
            if f.name not in ("chunk_bytes", "order") and getattr(choice, f.name) != default_of(f)
        }

    def __getattr__(self, name: str) -> Any:
        self._left.discard(name)
        return getattr(self._choice, name)

    def require_all_read(self, node: Exchange) -> None:
        """Raise ValueError if a field was given that means nothing to the node."""
        if self._left:
            name = min(self._left)
            raise ValueError(
                f"this choice of format 1 is {node}, where {name} means nothing, but it is "
                f"{getattr(self._choice, name)}; leave it out."
            )


def exchange_of(choice: FlatChoice) -> Exchange:
    """Return the node that a choice of format 1 stands for.

    Nesting was fixed there: hosts outermost, then the warm-up, local steps, delay, period, and what exchanges.

    Raises:
        ValueError: A field was given that means nothing with the others, or a node refuses its value.

    """
    given = _Fields(choice)
    node = _between_hosts(given, choice)
    given.require_all_read(node)
    return node


def _between_hosts(c: Any, choice: FlatChoice) -> Exchange:
    if not c.hierarchical:
        return _after(c, choice)
    flat = choice
    if choice.before is not None:
        flat = replace(choice, before=replace(choice.before, hierarchical=False))
    return BetweenHosts(inner=_after(c, flat))


def _after(c: Any, choice: FlatChoice) -> Exchange:
    if c.what == "momentum":
        codec, _, _ = _codec(c, "sign"), c.before, c.feedback
        averaging = ScatterGather(codec=codec, feedback="both", chunk_bytes=c.chunk_bytes)
        _ = c.collective
        return CompressedMomentum(beta=c.momentum, warmup_steps=c.until_step, averaging=averaging)
    if c.before is None:
        return _timed(c)
    first = exchange_of(choice.before or FlatChoice())
    return After(steps=c.until_step, first=first, then=_timed(c))


def _timed(c: Any) -> Exchange:
    if c.what == "change":
        return LocalSteps(
            period=c.every,
            averaging=_leaf(c),
            outer=c.outer or Outer(),
            stretch=c.stretch,
            fragments=c.fragments,
            delay_steps=c.delay_steps,
            pace=c.pace,
            weighted=c.weighted,
        )
    if c.what == "weight":
        return _weights(c)
    node = _leaf(c)
    if c.every > 1:
        node = Every(steps=c.every, inner=node)
    if c.delay_steps:
        node = Delayed(inner=node, compensation=c.compensation, lookahead=c.lookahead)
    return node


def _weights(c: Any) -> Exchange:
    _, period = c.collective, c.every
    if c.own is not None:
        _ = c.graph
        return Custom(name=c.own.name, settings=c.own.settings, exchanges="weights", period=period)
    graph = c.graph or Graph()
    if c.codec is None:
        return Gossip(graph=graph, period=period, delay_steps=c.delay_steps, pace=c.pace)
    _ = c.delay_steps
    return CodedGossip(codec=_codec(c), graph=graph, gamma=c.gamma, period=period)


def _codec(c: Any, default: str = "") -> CodecSpec:
    if c.codec is None:
        if default:
            return CodecSpec(name=default)
        raise ValueError(f"a choice of format 1 needs a codec for {c.collective}, but has none.")
    return CodecSpec(name=c.codec.name, settings=c.codec.settings)


def _leaf(c: Any) -> Exchange:
    if c.own is not None:
        return Custom(name=c.own.name, settings=c.own.settings)
    return _LEAVES[c.collective](c)


def _all_reduce(c: Any) -> Exchange:
    node = AllReduce(codec=None if c.codec is None else _codec(c))
    _ = c.feedback if node.error_feedback != "none" else None  # randomk always keeps what it does not send
    return node


def _scatter_gather(c: Any) -> Exchange:
    return ScatterGather(codec=_codec(c), feedback=c.feedback, chunk_bytes=c.chunk_bytes)


def _all_gather(c: Any) -> Exchange:
    codec = _codec(c)
    if codec.facts.kind == "transform":
        return DecoupledMomentum(codec=codec, momentum=c.momentum, signed=c.signed)
    _ = c.feedback
    return AllGather(codec=codec, momentum=c.momentum, ramp_steps=c.ramp_steps, target=c.target)


def _low_rank(c: Any) -> Exchange:
    _, codec = c.feedback, c.codec
    if codec is None or codec.name != "rank" or set(codec.settings) - {"rank"}:
        raise ValueError(f"a choice of format 1 needs the codec 'rank' for low_rank, but has {codec}.")
    return LowRank(rank=int(codec.settings.get("rank", 4)))


def _owner(c: Any) -> Exchange:
    placement = Placement(bandwidths=c.bandwidths)
    if c.pace == "free":
        return ParameterServer(staleness=c.staleness, placement=placement)
    return ShardedOptimizer(codec=None if c.codec is None else _codec(c), placement=placement)


def _blocks(c: Any) -> Exchange:
    return BlockSparse(
        selection=c.selection or Selection(),
        feedback=c.feedback,
        momentum=c.momentum,
        ramp_steps=c.ramp_steps,
        target=c.target,
    )


def _gossip(c: Any) -> Exchange:
    raise ValueError(f"gossip averages weights, but this choice of format 1 exchanges a {c.what}.")


_LEAVES: Mapping[str, Callable[[Any], Exchange]] = {
    "all_reduce": _all_reduce,
    "scatter_gather": _scatter_gather,
    "all_gather": _all_gather,
    "low_rank": _low_rank,
    "owner": _owner,
    "blocks": _blocks,
    "gossip": _gossip,
}
