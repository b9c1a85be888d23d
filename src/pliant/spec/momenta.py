"""Nodes that exchange momenta made of gradients, before the optimizer's step."""

from dataclasses import dataclass, field
from typing import ClassVar

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, Timing, require, require_codec
from pliant.spec.gradients import ScatterGather

__all__ = ["CompressedMomentum", "DecoupledMomentum"]


@dataclass(frozen=True, kw_only=True)
class DecoupledMomentum(Exchange):
    """Largest coefficients of each rank's own momentum, which keeps the others (DeMo)."""

    made_by: ClassVar[str] = "executors.decoupled_momentum:DecoupledMomentumExecutor"
    codec: CodecSpec = field(default_factory=lambda: CodecSpec(name="dct"))
    momentum: float = 0.999
    signed: bool = True
    """Whether the optimizer gets the signs of the mean, not the mean."""

    def __post_init__(self) -> None:
        require_codec(self.codec, "DecoupledMomentum", "transform")
        require(0 < self.momentum < 1, "DecoupledMomentum", f"momentum must be between 0 and 1, got {self.momentum:g}.")

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
    beta: float
    """Decay of the momentum: beta_1 of the optimizer."""
    warmup_steps: int
    averaging: ScatterGather = field(
        default_factory=lambda: ScatterGather(codec=CodecSpec(name="sign"), feedback="both")
    )

    def __post_init__(self) -> None:
        require(0 < self.beta < 1, "CompressedMomentum", f"beta must be between 0 and 1, got {self.beta:g}.")
        require(
            self.warmup_steps >= 1,
            "CompressedMomentum",
            f"warmup_steps must be at least 1, since the variance must be estimated first, got {self.warmup_steps}.",
        )
        require(
            self.averaging.feedback == "both",
            "CompressedMomentum",
            f"averaging must have feedback 'both', got {self.averaging.feedback!r}.",
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
    def payload_codec(self) -> CodecSpec | None:
        return self.averaging.codec

    @property
    def error_feedback(self) -> Feedback:
        return "both"
