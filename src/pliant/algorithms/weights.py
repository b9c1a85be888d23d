"""Algorithms that exchange weights, by the names that users type: each returns a node of a plan. No torch here."""

from pliant.algorithms.gradients import int4, topk
from pliant.algorithms.inputs import AlgorithmLike, CodecLike, as_codec_spec, node_of
from pliant.spec import After, AllReduce, CodecSpec, CodedGossip, Exchange, Gossip, Graph, LocalSteps, Outer

__all__ = [
    "async_average",
    "choco",
    "dcd",
    "diloco",
    "gossip",
    "local_sgd",
    "post_local_sgd",
    "sparse_loco",
    "streaming_diloco",
]

_EIGHT_BITS = CodecSpec(name="minmax8")
_WIDE = Graph(kind="exponential")


def gossip(graph: Graph | None = None, *, period: int = 1, free: bool = False) -> Gossip:
    """Average with neighbours in full precision; by default on the one-peer exponential graph.

    With `free` no rank waits for an exchange before its next step, but each exchange begins with all ranks, so that a
    slow rank makes them as rare for all, and one that has stopped ends all after the timeout.
    """
    graph = Graph(kind="one_peer") if graph is None else graph
    if free:
        return Gossip(graph=graph, period=period, delay_steps=0, pace="free")
    return Gossip(graph=graph, period=period)


def choco(
    codec: CodecLike | None = None,
    graph: Graph | None = None,
    *,
    gamma: float = 0.5,
    period: int = 1,
) -> CodedGossip:
    """CHOCO-SGD: any codec, if gamma is small enough for it; by default 8 bits on the static exponential graph."""
    return CodedGossip(codec=as_codec_spec(codec) or _EIGHT_BITS, graph=graph or _WIDE, gamma=gamma, period=period)


def dcd(codec: CodecLike | None = None, graph: Graph | None = None, *, period: int = 1) -> CodedGossip:
    """DCD-PSGD, for codecs that lose little; by default 8 bits on the static exponential graph."""
    return CodedGossip(codec=as_codec_spec(codec) or _EIGHT_BITS, graph=graph or _WIDE, period=period)


def local_sgd(
    period: int = 8, *, stretch: float = 0.0, delay_steps: int = 0, averaging: AlgorithmLike | None = None
) -> LocalSteps:
    """Average weights every `period` steps, and use the mean `delay_steps` steps later.

    With a delay the exchange runs beside the next steps, and what they do is kept: DaSGD (Zhou et al.,
    arXiv:2006.00441). ``local_sgd(1, delay_steps=1)`` sends as much as exact averaging and hides it behind a whole
    step, as `delayed` does, but a rank's own gradient is never late: only the others' are.
    """
    return LocalSteps(period=period, averaging=_averaging_node(averaging), stretch=stretch, delay_steps=delay_steps)


def async_average(period: int = 1, *, averaging: AlgorithmLike | None = None) -> LocalSteps:
    """Average weights in the background; slow ranks count for less.

    No rank waits for an exchange before its next step, but each exchange begins with all ranks: a slow rank makes them
    as rare for all, and one that has stopped ends all after the timeout.
    """
    return LocalSteps(period=period, averaging=_averaging_node(averaging), pace="free", weighted=True)


def post_local_sgd(warmup_steps: int, period: int = 8) -> After:
    """Exact averaging of gradients at first, then local SGD (Lin et al., arXiv:1808.07217)."""
    return After(steps=warmup_steps, first=AllReduce(), then=local_sgd(period))


def diloco(
    period: int = 32, *, outer_lr: float = 0.7, outer_momentum: float = 0.9, averaging: AlgorithmLike | None = None
) -> LocalSteps:
    """DiLoCo, in full precision or with any algorithm that averages: ``diloco(averaging=pliant.int4())``."""
    outer = Outer(lr=outer_lr, momentum=outer_momentum)
    return LocalSteps(period=period, averaging=_averaging_node(averaging), outer=outer)


def streaming_diloco(period: int = 32, *, fragments: int = 4, delay_steps: int = 2) -> LocalSteps:
    """DiLoCo in fragments, in 4 bits, beside the training: Streaming DiLoCo."""
    outer = Outer(lr=0.7, momentum=0.9)
    return LocalSteps(period=period, averaging=int4(), outer=outer, fragments=fragments, delay_steps=delay_steps)


def sparse_loco(period: int = 16, *, ratio: float = 0.03) -> LocalSteps:
    """Top-k of the changes with error feedback, and no outer momentum (SparseLoCo, Sarfi et al., arXiv:2508.15706)."""
    return LocalSteps(period=period, averaging=topk(ratio))


def _averaging_node(given: AlgorithmLike | None) -> Exchange:
    return AllReduce() if given is None else node_of(given)
