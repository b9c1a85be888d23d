"""Nodes that exchange weights between steps, beside or instead of gradients."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, require, require_codec, require_timing
from pliant.spec.gradients import AllReduce
from pliant.spec.graph import Graph
from pliant.spec.optimizer_state import OptimizerState
from pliant.spec.outer import Outer
from pliant.spec.ranges import Count, Number, Quantity, Share, Tried
from pliant.spec.timing import Pace, Timing

__all__ = ["CodedGossip", "Gossip", "LocalSteps"]


@dataclass(frozen=True, kw_only=True)
class Gossip(Exchange):
    """Weights averaged with neighbours in a graph, in full precision (D-PSGD)."""

    made_by: ClassVar[str] = "executors.gossip:GossipExecutor"
    graph: Graph = field(default_factory=lambda: Graph(kind="one_peer"))
    period: Annotated[Count, Tried((1, 2, 4))] = 1
    delay_steps: Annotated[int, Tried((0, 1))] = 1
    """At 1 the exchange runs beside the next step, whose progress is added to the mean."""
    pace: Annotated[Pace, Tried(("lockstep", "free"))] = "lockstep"
    """At a free pace two neighbours at a time take the mean of both, whatever steps they are in (AD-PSGD)."""
    staleness: Number = 0
    """At a free pace, steps that a rank makes while its exchange is under way before it waits for it; 0: any number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_timing(self.pace, self.delay_steps, self.period, "Gossip")
        _require_free(self.pace, self.staleness, "Gossip")

    @property
    def kind(self) -> Kind:
        return "weights"

    @property
    def timing(self) -> Timing:
        return Timing(period=self.period, delay_steps=self.delay_steps, pace=self.pace)

    @property
    def meets_in_pairs(self) -> bool:
        return self.pace == "free"

    @property
    def works_in_float32(self) -> bool:
        return self.period > 1 or self.delay_steps > 0


@dataclass(frozen=True, kw_only=True)
class CodedGossip(Exchange):
    """Weights averaged with neighbours by coded differences to replicas (CHOCO-SGD; at gamma 0 DCD-PSGD)."""

    made_by: ClassVar[str] = "executors.gossip:CodedGossipExecutor"
    codec: CodecSpec = field(default_factory=lambda: CodecSpec(name="minmax8"))
    graph: Graph = field(default_factory=lambda: Graph(kind="exponential"))
    gamma: Annotated[Share, Tried((0.0, 0.5, 0.1))] = 0.0
    """How far weights go towards what replicas say; at 0 the own replica takes their place."""
    period: Annotated[Count, Tried((1, 2, 4))] = 1
    pace: Annotated[Pace, Tried(("lockstep", "free"))] = "lockstep"
    """At a free pace each pair of neighbours keeps replicas of its own, and two ranks meet at a time."""
    staleness: Number = 0
    """At a free pace, steps that a rank makes while its exchange is under way before it waits for it; 0: any number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "CodedGossip", "cast", "quantizer", "sparsifier")
        _require_free(self.pace, self.staleness, "CodedGossip")
        require(
            self.pace == "lockstep" or self.gamma > 0,
            "CodedGossip",
            "gamma must be above 0 at a free pace, got 0: with DCD a rank's weights are the one replica that all "
            "neighbours hold, but at a free pace only one of them hears of a change; use choco(gamma=0.5, free=True).",
        )

    @property
    def kind(self) -> Kind:
        return "weights"

    @property
    def timing(self) -> Timing:
        delay_steps = 1 if self.gamma and self.pace == "lockstep" else 0
        return Timing(period=self.period, delay_steps=delay_steps, pace=self.pace)

    @property
    def meets_in_pairs(self) -> bool:
        return self.pace == "free"


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Exchange):
    """Steps alone; then the mean change of the weights goes to an outer optimizer (local SGD, DiLoCo)."""

    made_by: ClassVar[str] = "executors.local_steps:LocalStepsExecutor"
    period: Annotated[Count, Tried((2, 4, 8, 16, 32))]
    """Steps from one exchange to the next."""
    averaging: Exchange = field(default_factory=AllReduce)
    """How the changes are averaged: a node of gradients whose result is a mean at once."""
    outer: Annotated[Outer, Tried((Outer(), Outer(lr=0.7, momentum=0.6), Outer(lr=0.7, momentum=0.9)))] = field(
        default_factory=Outer
    )
    stretch: Quantity = 0.0
    """Exchange every max(period, (stretch / lr)^2) steps, so that the period grows as the learning rate falls."""
    fragments: Annotated[int, Tried((1, 4))] = 1
    """Parts of the model that are exchanged at different steps of a period."""
    delay_steps: Annotated[int, Tried((0, 2))] = 0
    """How many steps later the result is used."""
    pace: Annotated[Pace, Tried(("lockstep", "free"))] = "lockstep"
    weighted: bool = False
    """Whether a rank counts by the work that it has done since the last exchange; with a quorum, by the work times the
    work of a step."""
    quorum: int | None = None
    """At a free pace, ranks whose period must be over before an average, in which all others have weight 0; below 0 all
    but so many. None: one calls, and all take part with what they have."""
    grace_s: Quantity = 0.0
    """With a quorum, seconds for which others are waited for from then on, while all go on with their steps."""
    inner_optimizer: Literal["any", "Muon"] = "any"
    """Optimizer that the outer settings are for, which must be among those of the run."""
    states: tuple[OptimizerState, ...] = ()
    """States of the optimizer that are averaged as well: plain means, each with a period of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_timing(self.pace, self.delay_steps, self.period, "LocalSteps")
        _require_states(self)
        _require_quorum(self)
        require(
            self.pace == "lockstep" or not (self.outer.lr_points or self.outer.momentum_points),
            "LocalSteps",
            "outer must have no points at a free pace, where ranks are at steps of their own and would not agree on "
            "their values; leave them out, or use pace='lockstep'.",
        )
        require(
            1 <= self.fragments <= self.period,
            "LocalSteps",
            f"fragments must be from 1 to the period of {self.period}, so that each has a step of its own, got "
            f"{self.fragments}.",
        )
        for node in self.averaging.walk():
            require(
                node.gives_mean,
                "LocalSteps",
                f"averaging must give a mean of changes at once, which {type(node).__name__} does not; use AllReduce, "
                "ScatterGather, AllGather, LowRank or a registered algorithm.",
            )
            require(
                node.timing.period == 1 and node.timing.delay_steps == 0,
                "LocalSteps",
                f"averaging must happen at once, but {type(node).__name__} changes when; use the period and the "
                "delay_steps of LocalSteps.",
            )
            require(
                node.ratio_target is None,
                "LocalSteps",
                "averaging must have no target, since what is exposed of gradients is what a target holds.",
            )
            require(
                not node.differs_by_rank or (self.pace == "lockstep" and not self.weighted),
                "LocalSteps",
                f"{type(node).__name__} needs ranks in lockstep that all count alike, since neighbours know nothing of "
                "other ranks' pace and work; use pace='lockstep' without weighted, or gossip(free=True).",
            )

    @property
    def kind(self) -> Kind:
        return "weights"

    @property
    def timing(self) -> Timing:
        return Timing(
            period=self.period,
            delay_steps=self.delay_steps,
            pace=self.pace,
            fragments=self.fragments,
            stretch=self.stretch,
            weighted=self.weighted,
            quorum=self.quorum,
            grace_s=self.grace_s,
        )

    @property
    def payload_codec(self) -> CodecSpec | None:
        return self.averaging.payload_codec

    @property
    def error_feedback(self) -> Feedback:
        return self.averaging.error_feedback

    @property
    def ratio(self) -> float | None:
        return self.averaging.ratio

    @property
    def works_in_float32(self) -> bool:
        return self.period > 1 or self.delay_steps > 0 or self.averaging.works_in_float32


def _require_free(pace: Pace, staleness: int, node: str) -> None:
    require(
        pace == "free" or staleness == 0,
        node,
        f"staleness must be 0 in lockstep, where delay_steps says how late a result is, got {staleness}; use "
        "pace='free'.",
    )


def _require_quorum(node: LocalSteps) -> None:
    require(
        node.quorum != 0,
        "LocalSteps",
        "quorum must be a number of ranks, or below 0 for all but so many, got 0, with which averages would be of "
        "nobody's change; use -1 for all ranks but one, or leave it out.",
    )
    require(
        node.pace == "free" or node.quorum is None,
        "LocalSteps",
        f"quorum must be left out in lockstep, where the periods of all ranks are over at once, got {node.quorum}; use "
        "pace='free'.",
    )
    require(
        node.quorum is not None or not node.grace_s,
        "LocalSteps",
        f"grace_s must be 0 without a quorum, after which it begins, got {node.grace_s:g}; set quorum=-1 for all ranks "
        "but one.",
    )


def _require_states(node: LocalSteps) -> None:
    names = [state.name for state in node.states]
    require(
        len(set(names)) == len(names),
        "LocalSteps",
        f"states must name each state once, got {', '.join(names)}; leave the second out.",
    )
    require(
        node.pace == "lockstep" or not names,
        "LocalSteps",
        f"states must be empty at a free pace, where a rank's optimizer steps while others average, got "
        f"{', '.join(names)}; use pace='lockstep'.",
    )
    for state in node.states:
        require(
            max(state.period, node.period) % min(state.period, node.period) == 0,
            "LocalSteps",
            f"the period of {state.name!r} must be a multiple or a divisor of the weights' {node.period} steps, so "
            f"that the rarer of the two always meets the other, got {state.period}.",
        )
