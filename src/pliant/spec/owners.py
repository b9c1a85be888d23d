"""Nodes under which each parameter has an owner, who alone steps it."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Timing, require, require_codec
from pliant.spec.ranges import Number, Range, check_ranges

__all__ = ["ParameterServer", "Placement", "ShardedOptimizer"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Parameters per owner: the share that each rank's bandwidth allows."""

    bandwidths: Annotated[tuple[float, ...], Range(low=0, above=True)] = ()
    """What each rank's network carries, in any unit: owners hold parts of that size; equal if not given."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ShardedOptimizer(Exchange):
    """Gradients to the owner of their parameter, who alone steps it and sends new weights to all (ZeRO, stage 1)."""

    made_by: ClassVar[str] = "executors.owners:OwnerExecutor"
    codec: CodecSpec | None = None
    """In how many bits gradients travel; weights travel as they are."""
    placement: Placement = field(default_factory=Placement)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "ShardedOptimizer", "cast", "quantizer")
        require(
            self.codec is None or not self.codec.facts.biased,
            "ShardedOptimizer",
            f"codec must be unbiased, since owners keep no residuals, got {self.codec}.",
        )

    @property
    def has_owners(self) -> bool:
        return True

    @property
    def works_in_float32(self) -> bool:
        return self.codec is not None


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
    def timing(self) -> Timing:
        return Timing(pace="free")

    @property
    def works_in_float32(self) -> bool:
        return False
