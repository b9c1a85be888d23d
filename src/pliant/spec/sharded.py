"""Node for models that are divided among ranks: the reduce-scatter of gradients and the all-gather of weights."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, require, require_codec
from pliant.spec.gradients import AllReduce
from pliant.spec.ranges import Number, check_ranges
from pliant.spec.target import Target
from pliant.spec.timing import Timing

__all__ = ["ReduceScatter", "Residual", "Sharded", "WeightGather"]

Residual = Literal["full", "int8", "none"]
"""Residual of a codec on each rank: in float32, in 8 bits, or none."""


@dataclass(frozen=True, kw_only=True)
class ReduceScatter:
    """Setting of `Sharded`: the way of gradients to the rank that holds their shard; without a codec exactly."""

    codec: CodecSpec | None = None
    residual: Residual = "none"
    """Residual of the codec; it has the size of the whole model on every rank, which encodes all other parts."""
    rotated: bool = False
    """Whether blocks of 64 elements are rotated by a Hadamard matrix first, so that no element sticks out (SDP4Bit)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require_codec(self.codec, "ReduceScatter", "cast", "quantizer")
        require(
            self.codec is not None or (self.residual == "none" and not self.rotated),
            "ReduceScatter",
            f"codec must be given where something is lost, got residual {self.residual!r}, rotated {self.rotated}.",
        )
        require(
            self.codec is None or not self.codec.facts.biased or self.residual != "none",
            "ReduceScatter",
            f"residual must be 'full' or 'int8' with the biased codec {self.codec}, got 'none'.",
        )


@dataclass(frozen=True, kw_only=True)
class WeightGather:
    """Setting of `Sharded`: the way of weights from their shards to all ranks; without a codec exactly."""

    codec: CodecSpec | None = None
    differences: bool = False
    """Whether changes since the last gather travel, so that few bits lose little; memory: a copy of the weights."""
    regather: bool = True
    """Whether backward gathers again; otherwise it decodes what forward has received, which is kept for it."""

    def __post_init__(self) -> None:
        require_codec(self.codec, "WeightGather", "cast", "quantizer")
        require(
            self.codec is not None or not self.differences,
            "WeightGather",
            "codec must be given for differences, got None.",
        )
        require(
            self.codec is None or self.differences or not self.codec.facts.biased,
            "WeightGather",
            f"differences must be True with the biased codec {self.codec}, got False.",
        )
        require(
            not (self.differences and self.regather),
            "WeightGather",
            "regather must be False with differences, since a second, finer difference would give backward other "
            "weights than forward, got True.",
        )

    @property
    def reads_once(self) -> bool:
        """Whether what a gather brings is decoded once, so that the receives of the next one may stand from then on."""
        return self.differences or self.regather

    @classmethod
    def of_differences(cls, codec: CodecSpec | None) -> Self:
        """Return the setting in which coded changes since the last gather travel."""
        return cls(codec=codec, differences=True, regather=False)


@dataclass(frozen=True, kw_only=True)
class Sharded(Exchange):
    """The exchanges of a model under fully_shard, HSDP or replicate(); None leaves one to torch, and so all of them."""

    made_by: ClassVar[str] = "executors.sharded:ShardedExecutor"

    gradients: ReduceScatter | None = None
    weights: WeightGather | None = None
    replicas: Exchange | None = None
    """The exchange among ranks that hold the same shard: of their gradients, or of weights between steps."""
    limit_bytes: Number = 0
    """Most bytes that a rank may keep for it; a run that needs more is refused before it begins. 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = () if self.replicas is None else self.replicas.walk()
        require(
            not any(isinstance(node, Sharded) or node.has_owners for node in inside),
            "Sharded",
            "replicas must hold all of their shard alike, so that no node inside has owners or is Sharded (gradients "
            f"and weights divide the optimizer's state already), got {self.replicas}.",
        )
        require(
            self.replicas is None or not self.replicas.meets_in_pairs,
            "Sharded",
            f"replicas must not meet in pairs at a free pace, got {self.replicas}, since the ranks of a model make the "
            "same steps; use pace='lockstep', or async_average.",
        )

    @property
    def is_torchs(self) -> bool:
        """Whether everything is left to torch."""
        return self.gradients is None and self.weights is None and self.replicas is None

    @property
    def _among_replicas(self) -> Exchange:
        return AllReduce() if self.replicas is None else self.replicas

    @property
    def kind(self) -> Kind:
        return self._among_replicas.kind

    @property
    def core(self) -> Exchange:
        return self if self.replicas is None else self.replicas.core

    @property
    def timing(self) -> Timing:
        return self._among_replicas.timing

    @property
    def early_timing(self) -> Timing:
        return self._among_replicas.early_timing

    @property
    def payload_codec(self) -> CodecSpec | None:
        if self.gradients is not None and self.gradients.codec is not None:
            return self.gradients.codec
        return self._among_replicas.payload_codec

    @property
    def error_feedback(self) -> Feedback:
        return self._among_replicas.error_feedback

    @property
    def ratio_target(self) -> Target | None:
        return self._among_replicas.ratio_target

    @property
    def ratio(self) -> float | None:
        return self._among_replicas.ratio

    @property
    def works_in_float32(self) -> bool:
        return self._among_replicas.works_in_float32

    @property
    def averages_in_host(self) -> bool:
        return self._among_replicas.averages_in_host

    @property
    def keeps_gradients(self) -> bool:
        return self._among_replicas.keeps_gradients or (
            self.gradients is not None and self.gradients.residual != "none"
        )
