"""Nodes that exchange momenta made of gradients, before the optimizer's step."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, require, require_codec
from pliant.spec.gradients import AllGather, AllReduce, LowRank, ScatterGather
from pliant.spec.ranges import Count, Range
from pliant.spec.timing import Timing

__all__ = ["CompressedMomentum", "DecoupledMomentum", "MomentumDifferences"]

_Decay = Annotated[float, Range(low=0, high=1, above=True, below=True)]


@dataclass(frozen=True, kw_only=True)
class DecoupledMomentum(Exchange):
    """Largest coefficients of each rank's own momentum, which keeps the others (DeMo)."""

    made_by: ClassVar[str] = "executors.decoupled_momentum:DecoupledMomentumExecutor"
    codec: CodecSpec = field(default_factory=lambda: CodecSpec(name="dct"))
    momentum: _Decay = 0.999
    signed: bool = True
    """Whether the optimizer gets the signs of the mean, not the mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "DecoupledMomentum", "transform")

    @property
    def gives_mean(self) -> bool:
        return False

    @property
    def keeps_gradients(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class CompressedMomentum(Exchange):
    """Exact gradients while the variance settles, then a momentum in few bits (1-bit Adam)."""

    made_by: ClassVar[str] = "executors.compressed_momentum:CompressedMomentumExecutor"
    beta: _Decay
    """Decay of the momentum: beta_1 of the optimizer."""
    warmup_steps: Count
    """Steps in which the variance is estimated, which a momentum in few bits needs."""
    averaging: ScatterGather = field(
        default_factory=lambda: ScatterGather(codec=CodecSpec(name="sign"), feedback="both")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.averaging.feedback == "both",
            "CompressedMomentum",
            f"averaging must have feedback 'both', got {self.averaging.feedback!r}.",
        )
        require(
            self.averaging.decay == 1,
            "CompressedMomentum",
            f"averaging must have decay 1, since 1-bit Adam loses nothing, got {self.averaging.decay:g}.",
        )

    @property
    def kind(self) -> Kind:
        return "momentum"

    @property
    def children(self) -> tuple[Exchange, ...]:
        return ()  # the averaging is a setting: no other node may stand there

    @property
    def timing(self) -> Timing:
        return Timing(until_step=self.warmup_steps)

    @property
    def needs_links(self) -> bool:
        return self.averaging.needs_links

    @property
    def payload_codec(self) -> CodecSpec | None:
        return self.averaging.codec

    @property
    def error_feedback(self) -> Feedback:
        return "both"


@dataclass(frozen=True, kw_only=True)
class MomentumDifferences(Exchange):
    """Differences of each rank's momentum to what all know of it, which add up to the mean momentum (EF21-Muon)."""

    made_by: ClassVar[str] = "executors.momentum_differences:MomentumDifferencesExecutor"
    momentum: _Decay = 0.95
    """Decay of each rank's momentum; the optimizer's own must be 0."""
    nesterov: bool = False
    """Whether the result looks ahead, by the momentum's share of what was added last."""
    averaging: Exchange
    """Mean of the differences, exact or with error feedback: what is lost once is lost in all later steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.averaging
        require(
            isinstance(inner, AllReduce | ScatterGather | AllGather | LowRank),
            "MomentumDifferences",
            "averaging must be AllReduce, ScatterGather, AllGather or LowRank, whose results are means, got "
            f"{type(inner).__name__}.",
        )
        needed = "both" if isinstance(inner, ScatterGather) else "worker"
        require(
            inner.payload_codec is None or inner.error_feedback == needed,
            "MomentumDifferences",
            f"averaging must be exact or keep all that its codec loses, since means add up, got {inner}; use "
            "feedback='both', or no codec.",
        )
        require(
            getattr(inner, "decay", 1.0) == 1 and not getattr(inner, "momentum", 0.0) and inner.ratio_target is None,
            "MomentumDifferences",
            f"averaging must have decay 1, no momentum and no target, got {inner}; leave them out.",
        )

    @property
    def kind(self) -> Kind:
        return "momentum"

    @property
    def payload_codec(self) -> CodecSpec | None:
        return self.averaging.payload_codec

    @property
    def coding(self) -> str:
        return self.averaging.coding

    @property
    def error_feedback(self) -> Feedback:
        return self.averaging.error_feedback

    @property
    def replaces_momentum(self) -> bool:
        return True

    @property
    def keeps_gradients(self) -> bool:
        return True
