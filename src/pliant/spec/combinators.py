"""Nodes around other nodes: every n-th step, a step late, after a warm-up. Nesting is meaning."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, require
from pliant.spec.outer import Outer
from pliant.spec.ranges import Count, Quantity, Tried
from pliant.spec.target import Target
from pliant.spec.timing import Timing
from pliant.spec.weights import LocalSteps

__all__ = ["After", "Combinator", "Delayed", "Every"]


@dataclass(frozen=True, kw_only=True)
class Combinator(Exchange):
    """Base of combinators: where they do not say otherwise, the answer is that of the node inside."""

    ONCE: ClassVar[str] = ""
    """Why it stands once among the nodes that hold each other."""
    TAKES_OWNERS: ClassVar[bool] = False
    """Whether the node inside may have owners, all at the same steps."""
    inner: Exchange

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        twice = next((node for node in self.inner.walk() if isinstance(node, type(self))), None)
        require(twice is None, name, f"inner has a {name} already, {self.ONCE}; leave one out.")
        require(
            not self.inner.has_owners or self.TAKES_OWNERS,
            name,
            "inner must not have owners, since they hold parts of the optimizer for all ranks, and send new weights "
            f"after every step, got {type(self.inner.core).__name__}; use it by itself.",
        )

    @property
    def kind(self) -> Kind:
        return self.inner.kind

    @property
    def core(self) -> Exchange:
        return self.inner.core

    @property
    def timing(self) -> Timing:
        return self.inner.timing

    @property
    def early_timing(self) -> Timing:
        return self.inner.early_timing

    @property
    def has_owners(self) -> bool:
        return self.inner.has_owners

    @property
    def steps_beside(self) -> bool:
        return self.inner.steps_beside

    @property
    def payload_codec(self) -> CodecSpec | None:
        return self.inner.payload_codec

    @property
    def error_feedback(self) -> Feedback:
        return self.inner.error_feedback

    @property
    def ratio_target(self) -> Target | None:
        return self.inner.ratio_target

    @property
    def ratio(self) -> float | None:
        return self.inner.ratio

    @property
    def works_in_float32(self) -> bool:
        return self.inner.works_in_float32

    @property
    def staleness_bound(self) -> int | None:
        return self.inner.staleness_bound

    @property
    def averages_in_host(self) -> bool:
        return self.inner.averages_in_host

    @property
    def meets_in_pairs(self) -> bool:
        return self.inner.meets_in_pairs

    @property
    def keeps_gradients(self) -> bool:
        return self.inner.keeps_gradients


@dataclass(frozen=True, kw_only=True)
class Every(Combinator):
    """Exchange of gradients in every n-th step; those of the others are added to it."""

    made_by: ClassVar[str] = "executors.timing:EveryExecutor"
    ONCE: ClassVar[str] = "and its steps are those of one period"
    steps: Annotated[Count, Tried((2, 4, 8))]

    def __post_init__(self) -> None:
        _require_gradients(self.inner, "Every", "the period of that node")
        super().__post_init__()

    @property
    def timing(self) -> Timing:
        return replace(self.inner.timing, period=self.steps)

    @property
    def early_timing(self) -> Timing:
        return replace(self.inner.early_timing, period=self.steps)

    @property
    def works_in_float32(self) -> bool:
        return self.steps > 1 or self.inner.works_in_float32

    @property
    def keeps_gradients(self) -> bool:
        return self.steps > 1 or self.inner.keeps_gradients


@dataclass(frozen=True, kw_only=True)
class Delayed(Combinator):
    """Gradients used one step late, while those of this step are exchanged (Pipe-SGD)."""

    made_by: ClassVar[str] = "executors.timing:DelayedExecutor"
    ONCE: ClassVar[str] = "but gradients can be one step late only"
    compensation: Quantity = 0.0
    """Factor of the correction for what the weights have done since (DC-ASGD)."""
    lookahead: Quantity = 0.0
    """How many steps gradients are extrapolated by, along what has changed since those before."""

    def __post_init__(self) -> None:
        _require_gradients(self.inner, "Delayed", "the delay_steps of that node")
        super().__post_init__()

    @property
    def timing(self) -> Timing:
        return replace(self.inner.timing, delay_steps=1)

    @property
    def early_timing(self) -> Timing:
        return replace(self.inner.early_timing, delay_steps=1)

    @property
    def works_in_float32(self) -> bool:
        return True

    @property
    def keeps_gradients(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class After(Exchange):
    """A warm-up with gradients, and another exchange from a step on."""

    made_by: ClassVar[str] = "executors.timing:AfterExecutor"
    steps: Count
    first: Exchange
    then: Exchange
    gathers_momentum: bool = False
    """Whether the outer momentum of `then` takes what each period of the warm-up has changed, and waits (Pier)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, node in (("first", self.first), ("then", self.then)):
            require(
                not any(isinstance(inside, After) for inside in node.walk()),
                "After",
                f"{name} has an After already; leave one out.",
            )
            require(
                not node.has_owners,
                "After",
                f"{name} must not have owners, since the optimizer's state lies with owners or everywhere, got "
                f"{type(node.core).__name__}; switch() instead of a warm-up.",
            )
            require(
                node.kind != "momentum",
                "After",
                f"{name} has a momentum, which is followed from the first step on, got {type(node.core).__name__}; use "
                "it by itself: CompressedMomentum has warmup_steps of its own.",
            )
            require(
                node.ratio_target is None, "After", f"{name} must have no target, which holds from the first step on."
            )
        require(
            not (self.first.levels and self.then.levels) or self.first.levels == self.then.levels,
            "After",
            "first and then must have the same levels, or one of them none, got "
            f"{' and '.join(self.first.levels)} first and {' and '.join(self.then.levels)} then; put After inside what "
            "both have.",
        )
        require(
            not self.first.exchanges_weights,
            "After",
            f"first must exchange gradients, since weights exchanged between steps leave the ranks apart, got "
            f"{type(self.first.core).__name__}.",
        )
        inside = self.then.outer if isinstance(self.then, LocalSteps) and self.then.pace == "lockstep" else Outer()
        require(
            not self.gathers_momentum or inside.has_momentum,
            "After",
            "gathers_momentum needs local steps in lockstep with an outer momentum, got "
            f"{self.then} then; set outer=Outer(momentum=0.9), or leave gathers_momentum out.",
        )

    @property
    def kind(self) -> Kind:
        return self.then.kind

    @property
    def core(self) -> Exchange:
        return self.then.core

    @property
    def timing(self) -> Timing:
        return replace(self.then.timing, until_step=self.steps, early_rounds=self.gathers_momentum)

    @property
    def early_timing(self) -> Timing:
        return self.first.timing

    @property
    def payload_codec(self) -> CodecSpec | None:
        return self.then.payload_codec

    @property
    def error_feedback(self) -> Feedback:
        return self.then.error_feedback

    @property
    def ratio(self) -> float | None:
        return self.then.ratio

    @property
    def works_in_float32(self) -> bool:
        return self.first.works_in_float32 or self.then.works_in_float32

    @property
    def averages_in_host(self) -> bool:
        return self.then.averages_in_host

    @property
    def meets_in_pairs(self) -> bool:
        return self.then.meets_in_pairs

    @property
    def keeps_gradients(self) -> bool:
        return self.first.keeps_gradients or self.then.keeps_gradients


def _require_gradients(inner: Exchange, name: str, instead: str) -> None:
    if inner.kind == "gradients":
        return
    what = type(inner.core).__name__
    if inner.kind == "momentum":
        require(False, name, f"inner must exchange gradients, but {what} must exchange its momentum in every step.")
    require(False, name, f"inner must exchange gradients, but {what} exchanges weights; use {instead}.")
