"""Nodes that exchange gradients before the optimizer's step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pliant.spec.codecs import CodecSpec
from pliant.spec.exchange import Exchange, Feedback, Kind, require, require_codec
from pliant.spec.inside import with_children
from pliant.spec.ranges import Count, Decay, Number, Range, Ratio, Tried
from pliant.spec.schedule import Scheduling
from pliant.spec.selection import Selection
from pliant.spec.target import Target
from pliant.spec.timing import Timing

__all__ = [
    "AllGather",
    "AllReduce",
    "BlockSparse",
    "Custom",
    "LowRank",
    "ScatterGather",
    "with_few_rounds",
]


@dataclass(frozen=True, kw_only=True)
class AllReduce(Exchange):
    """Mean of gradients, as they are or in a codec whose sums survive on the way."""

    made_by: ClassVar[str] = "executors.all_reduce:averaging"
    codec: CodecSpec | None = None
    """A cast, or `randomk`, which keeps what it does not send."""
    schedule: Scheduling = "ring"
    """How sums go over the network."""
    few_rounds: bool = False
    """Whether short means may take one or two rounds in the place of a ring's; they are added up in another order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "AllReduce", "cast", "shared")
        require(
            self.codec is None or not self.few_rounds,
            "AllReduce",
            f"codec must be None with few_rounds, which is for exact means, got {self.codec}.",
        )

    @property
    def slices_freely(self) -> bool:
        return True

    @property
    def error_feedback(self) -> Feedback:
        return "worker" if self.codec is not None and self.codec.facts.kind == "shared" else "none"

    @property
    def works_in_float32(self) -> bool:
        return self.codec is not None


@dataclass(frozen=True, kw_only=True)
class ScatterGather(Exchange):
    """Scatter, reduce, gather: every element in fewer bits, in both directions (BAGUA's C_LP_S)."""

    made_by: ClassVar[str] = "executors.scatter_gather:ScatterGatherExecutor"
    codec: CodecSpec
    feedback: Annotated[Literal["none", "worker", "both"], Tried(("none", "worker", "both"))] = "none"
    """Who keeps what the codec loses."""
    decay: Ratio = 1.0
    """Factor of what is kept, from one exchange to the next; below 1 old errors fade."""
    chunk_bytes: Annotated[int, Range(low=4096)] = 1 << 20
    """Bytes before coding in one pipelined piece of a bucket, where owners of equal parts add up; 16 MiB at least on
    accelerators."""
    schedule: Scheduling = "ring"
    """How sums go over the network; "ring" stands for owners of equal parts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "ScatterGather", "cast", "quantizer")
        require(
            not self.codec.facts.biased or self.feedback != "none",
            "ScatterGather",
            f"feedback must be 'worker' or 'both' with the biased codec {self.codec}, got 'none'.",
        )
        require(
            self.decay == 1 or self.feedback != "none",
            "ScatterGather",
            f"decay must be 1 without feedback, which keeps nothing that could fade, got {self.decay:g}; use "
            "feedback='both'.",
        )

    @property
    def slices_freely(self) -> bool:
        return True

    @property
    def error_feedback(self) -> Feedback:
        return self.feedback


@dataclass(frozen=True, kw_only=True)
class AllGather(Exchange):
    """Elements that each rank chooses, with error feedback on the worker (top-k; Deep Gradient Compression)."""

    made_by: ClassVar[str] = "executors.all_gather:AllGatherExecutor"
    codec: CodecSpec
    decay: Ratio = 1.0
    """Factor of what is kept, from one exchange to the next; below 1 what was not sent fades."""
    momentum: Decay = 0.0
    """Factor of the momentum correction; the optimizer's own momentum must then be 0."""
    ramp_steps: Number = 0
    """Steps over which the ratio falls to the codec's."""
    target: Target | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codec(self.codec, "AllGather", "sparsifier")
        require(
            not self.momentum or not self.codec.facts.value_codecs,
            "AllGather",
            f"momentum must be 0 with {self.codec.name}, whose values are rounded, so that nobody knows what of the "
            f"momentum was sent, got {self.momentum:g}; use topk or blocktopk.",
        )

    @property
    def error_feedback(self) -> Feedback:
        return "worker"

    @property
    def ratio(self) -> float | None:
        return self.codec.setting("ratio")

    @property
    def ratio_target(self) -> Target | None:
        return self.target


@dataclass(frozen=True, kw_only=True)
class BlockSparse(Exchange):
    """Blocks of gradients, chosen by what they do to the loss (TASC)."""

    made_by: ClassVar[str] = "executors.block_sparse:BlockSparseExecutor"
    selection: Selection = field(default_factory=Selection)
    feedback: Annotated[Literal["worker", "difference"], Tried(("worker", "difference"))] = "worker"
    """Whether the worker keeps what is not sent, or sends differences to an estimate that all keep (EF21)."""
    momentum: Decay = 0.0
    ramp_steps: Number = 0
    target: Target | None = None
    schedule: Scheduling = "ring"
    """How sums of agreed blocks go over the network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.schedule == "ring" or self.selection.agreement != "local",
            "BlockSparse",
            f"schedule must be 'ring' with the agreement {self.selection.agreement!r}, since schedules are for sums of "
            "blocks that all ranks agree on; set agreement='leader'.",
        )

    @property
    def gives_mean(self) -> bool:
        return False

    @property
    def divides_budget(self) -> bool:
        return True

    @property
    def spares_small(self) -> bool:
        return False  # whatever is small stays dense by itself

    @property
    def error_feedback(self) -> Feedback:
        return self.feedback

    @property
    def ratio(self) -> float | None:
        return self.selection.ratio

    @property
    def ratio_target(self) -> Target | None:
        return self.target


@dataclass(frozen=True, kw_only=True)
class LowRank(Exchange):
    """Products of two thin matrices, with error feedback on the worker (PowerSGD), or of momenta (Dion)."""

    made_by: ClassVar[str] = "executors.low_rank:LowRankExecutor"
    rank: Annotated[Count, Tried((8, 4, 2, 1))] = 4
    momentum: Decay = 0.0
    """Factor of what was sent that stays in what is kept; the optimizer's own momentum must then be 0."""
    schedule: Scheduling = "ring"
    """How sums of factors go over the network, where they are large."""

    @property
    def kind(self) -> Kind:
        return "momentum" if self.momentum else "gradients"

    @property
    def replaces_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def spares_small(self) -> bool:
        return False  # what is not worth factoring is sent whole, in messages of its own

    @property
    def coding(self) -> str:
        return f"rank(rank={self.rank})"

    @property
    def error_feedback(self) -> Feedback:
        return "worker"


@dataclass(frozen=True, kw_only=True)
class Custom(Exchange):
    """An algorithm that is not Pliant's, by the name under which every rank has registered it."""

    made_by: ClassVar[str] = "executors:registered"
    name: str
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    exchanges: Literal["gradients", "weights"] = "gradients"
    period: Count = 1
    """Steps from one exchange of weights to the next; `Every` is for gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "settings", MappingProxyType({k: float(v) for k, v in sorted(self.settings.items())}))
        require(
            self.period == 1 or self.exchanges == "weights",
            "Custom",
            f"period must be 1 where gradients are exchanged, got {self.period}; use Every for those.",
        )

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.settings.items()), self.exchanges, self.period))

    @property
    def kind(self) -> Kind:
        return self.exchanges

    @property
    def timing(self) -> Timing:
        return Timing(period=self.period)


def with_few_rounds(node: Exchange, *, few_rounds: bool = True) -> Exchange:
    """Return a node whose exact means, by itself or inside, may take few rounds, or all go as DDP's do."""
    if isinstance(node, AllReduce):
        return replace(node, few_rounds=few_rounds and node.codec is None)
    return with_children(node, lambda inner: with_few_rounds(inner, few_rounds=few_rounds))
