"""Nodes under which each part of a parameter has an owner, who alone steps it."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, require, require_codec
from pliant.spec.ranges import Number, Range, check_ranges
from pliant.spec.schedule import OwnerScheduling
from pliant.spec.timing import Timing

__all__ = [
    "ELEMENTWISE_OPTIMIZERS",
    "Acco",
    "Cut",
    "OwnedOptimizer",
    "ParameterServer",
    "Placement",
    "ShardedOptimizer",
    "placement_of",
    "schedule_of",
]

Cut = Literal["auto", "whole", "rows", "flat"]
"""Where parameters may be cut: nowhere, between rows of their first axis, or anywhere; "auto" is the last for an
optimizer that works element by element, and the first for all others."""

ELEMENTWISE_OPTIMIZERS = (
    "ASGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Optimizers of `torch.optim` whose step of an element depends on that element's own gradients alone."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Parts into which parameters are cut, and their owners."""

    bandwidths: Annotated[tuple[float, ...], Range(low=0, above=True)] = ()
    """What each rank's network carries, in any unit: owners hold parts of that size; equal if not given."""
    cut: Cut = "auto"
    max_bytes: Number = 0
    """Most bytes of a part; 0 for one part of each rank."""
    owners: Annotated[tuple[int, ...], Range(low=0)] = ()
    """Ranks to which the parts go in turn, in the model's order; all ranks, by their load, if not given."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            not (self.owners and self.bandwidths),
            "Placement",
            f"owners must be empty with bandwidths, which say who owns how much themselves, got {self.owners}.",
        )
        require(
            self.max_bytes == 0 or self.cut != "whole",
            "Placement",
            f"max_bytes must be 0 with cut='whole', under which nothing is cut, got {self.max_bytes}.",
        )


@dataclass(frozen=True, kw_only=True)
class OwnedOptimizer(Exchange):
    """Base of nodes whose owners step their parts with means over all ranks, and send new weights to all."""

    codec: CodecSpec | None = None
    """In how many bits gradients travel; weights travel as they are."""
    placement: Placement = field(default_factory=Placement)
    schedule: OwnerScheduling = "direct"
    """How gradients go to owners, and new weights from them, over the network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require_codec(self.codec, name, "cast", "quantizer")
        require(
            self.codec is None or not self.codec.facts.biased,
            name,
            f"codec must be unbiased, since owners keep no residuals, got {self.codec}.",
        )

    @property
    def has_owners(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ShardedOptimizer(OwnedOptimizer):
    """Gradients to the owners of their parts, who alone step them and send new weights to all (ZeRO, stage 1)."""

    made_by: ClassVar[str] = "executors.owners:OwnerExecutor"

    @property
    def works_in_float32(self) -> bool:
        return self.codec is not None


@dataclass(frozen=True, kw_only=True)
class Acco(OwnedOptimizer):
    """Gradients of two steps to their owners, beside backward, by way of weights estimated from the first (ACCO)."""

    made_by: ClassVar[str] = "executors.acco:AccoExecutor"

    @property
    def steps_beside(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Exchange):
    """Gradients to their owners as they come, and ranks at steps of their own (stale synchronous parallel)."""

    made_by: ClassVar[str] = "executors.owners:OwnerExecutor"
    staleness: Number = 1
    """How many steps a rank may be ahead of the slowest, and its weights behind."""
    codec: CodecSpec | None = None
    """In how many bits gradients travel, with error feedback on the worker; weights travel in float32."""
    placement: Placement = field(default_factory=Placement)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "ParameterServer", "cast", "quantizer", "sparsifier")

    @property
    def has_owners(self) -> bool:
        return True

    @property
    def error_feedback(self) -> Feedback:
        return "none" if self.codec is None else "worker"

    @property
    def spares_small(self) -> bool:
        return False

    @property
    def staleness_bound(self) -> int | None:
        return self.staleness

    @property
    def steps_beside(self) -> bool:
        return True

    @property
    def timing(self) -> Timing:
        return Timing(pace="free")

    @property
    def works_in_float32(self) -> bool:
        return False


def placement_of(node: Exchange) -> Placement:
    """Return the placement of a node that has owners. Raises TypeError for any other."""
    core = node.core
    if isinstance(core, (OwnedOptimizer, ParameterServer)):
        return core.placement
    raise TypeError(f"{node} has no owners, and so no placement.")


def schedule_of(node: Exchange) -> OwnerScheduling:
    """Return how gradients go to the owners of a node and weights back; servers at a free pace answer directly."""
    core = node.core
    return core.schedule if isinstance(core, OwnedOptimizer) else "direct"
