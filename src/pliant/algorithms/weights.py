"""Functions for algorithms that exchange weights between steps: each returns a node of a plan. No torch here."""

from pliant.algorithms.gradients import chunktopk
from pliant.algorithms.inputs import AlgorithmLike, CodecLike, as_codec_spec, averaging_of, node_of
from pliant.spec import (
    After,
    AllReduce,
    CodecSpec,
    CodedGossip,
    Gossip,
    Graph,
    LocalSteps,
    Outer,
    VisibleChanges,
)

__all__ = [
    "async_average",
    "choco",
    "dcd",
    "gossip",
    "local_sgd",
    "post_local_sgd",
    "pulse_loco",
    "sparse_loco",
]

_EIGHT_BITS = CodecSpec(name="minmax8")
_WIDE = Graph(kind="exponential")


def gossip(graph: Graph | None = None, *, period: int = 1, free: bool = False, staleness: int = 0) -> Gossip:
    """Average weights with neighbours in full precision (D-PSGD, Lian et al., arXiv:1705.09056).

    Args:
        graph: Neighbours of each step; one partner a step on the exponential graph if None.
        period: Steps from one exchange to the next.
        free: Whether ranks meet in pairs, each at its own pace (AD-PSGD, Lian et al., arXiv:1710.06952). A thread of
            the partner answers while the partner computes, so that a slow or stopped rank holds up nobody.
        staleness: With `free`, steps that a rank makes beside its exchange before it waits for it; 0 for any number.

    >>> str(gossip(period=4))
    'Gossip(period=4)'

    """
    graph = Graph(kind="one_peer") if graph is None else graph
    if free:
        return Gossip(graph=graph, period=period, delay_steps=0, pace="free", staleness=staleness)
    return Gossip(graph=graph, period=period, staleness=staleness)


def choco(
    codec: CodecLike | None = None,
    graph: Graph | None = None,
    *,
    gamma: float = 0.5,
    period: int = 1,
    free: bool = False,
    staleness: int = 0,
) -> CodedGossip:
    """Average weights with neighbours by coded differences to replicas (CHOCO-SGD, Koloskova et al., arXiv:1902.00340).

    Args:
        codec: Any codec of vectors; 8 bits if None. Coarse codecs need a small gamma.
        graph: A graph that stays the same; the exponential one if None.
        gamma: Share of the way to the neighbours' replicas, above 0 and at most 1.
        period: Steps from one exchange to the next.
        free: Whether ranks meet in pairs, each at its own pace, as with `gossip`; then any graph will do.
        staleness: As for `gossip`.

    >>> str(choco(gamma=0.2))
    'CodedGossip(gamma=0.2)'

    """
    return CodedGossip(
        codec=as_codec_spec(codec) or _EIGHT_BITS,
        graph=graph or _WIDE,
        gamma=gamma,
        period=period,
        pace="free" if free else "lockstep",
        staleness=staleness,
    )


def dcd(codec: CodecLike | None = None, graph: Graph | None = None, *, period: int = 1) -> CodedGossip:
    """Average weights with neighbours by coded differences (DCD-PSGD, Tang et al., arXiv:1803.06443).

    It needs a codec that loses little: 8 bits if None. Other settings are those of `choco`.

    >>> str(dcd(period=2))
    'CodedGossip(period=2)'
    """
    return CodedGossip(codec=as_codec_spec(codec) or _EIGHT_BITS, graph=graph or _WIDE, period=period)


def local_sgd(
    period: int = 8, *, stretch: float = 0.0, delay_steps: int = 0, averaging: AlgorithmLike | None = None
) -> LocalSteps:
    """Average weights every `period` steps (local SGD, Stich, arXiv:1805.09767).

    With a delay the exchange runs beside the next steps, whose progress is kept: DaSGD (Zhou et al., arXiv:2006.00441).
    ``local_sgd(1, delay_steps=1)`` sends as much as exact averaging and hides it behind a whole step, as `delayed`
    does, but a rank's own gradient is never late: only the others' are.

    Args:
        period: Steps from one exchange to the next.
        stretch: The period grows to (stretch / lr)^2 steps where that is more; 0 for never.
        delay_steps: Steps from an exchange to the use of its result, at most `period`.
        averaging: An algorithm that averages changes at once; exact if None.

    >>> str(local_sgd(16))
    'LocalSteps(period=16)'

    """
    return LocalSteps(period=period, averaging=averaging_of(averaging), stretch=stretch, delay_steps=delay_steps)


def async_average(period: int = 1, *, averaging: AlgorithmLike | None = None) -> LocalSteps:
    """Average weights in the background, where slow ranks count for less.

    A thread of each rank takes part in the averages while the rank computes, so that slow ranks delay neither steps nor
    averages. A stopped one delays averages, and ends all after the timeout; `gossip(free=True)` goes on without it.

    >>> str(async_average())
    "LocalSteps(period=1, pace='free', weighted=True)"
    """
    return LocalSteps(period=period, averaging=averaging_of(averaging), pace="free", weighted=True)


def post_local_sgd(warmup_steps: int, period: int = 8) -> After:
    """Average gradients exactly for `warmup_steps` steps, then use local SGD (Lin et al., arXiv:1808.07217).

    >>> str(post_local_sgd(100))
    'After(steps=100, first=AllReduce, then=LocalSteps(period=8))'
    """
    return After(steps=warmup_steps, first=AllReduce(), then=local_sgd(period))


def sparse_loco(period: int = 30, *, outer_lr: float = 1.0, averaging: AlgorithmLike | None = None) -> LocalSteps:
    """Exchange the largest changes of `period` local steps, in 2 bits, with feedback that fades and no outer momentum.

    SparseLoCo (Sarfi et al., arXiv:2508.15706): what was not sent stands for the momentum. `averaging` is
    ``chunktopk(1/64, decay=0.95)`` if None: 64 of each 4096 elements; the paper has 32 to 128, and periods from 15 on.
    Elements in full, without decay, are ``averaging=topk(0.03)``.

    >>> str(sparse_loco())
    'LocalSteps(period=30, averaging=AllGather(codec=chunktopk, decay=0.95))'
    """
    averaging = node_of(averaging or chunktopk(decay=0.95))
    return LocalSteps(period=period, averaging=averaging, outer=Outer(lr=outer_lr))


def pulse_loco(
    period: int = 8, *, assumed_density: float = 0.03, outer_lr: float = 0.7, outer_momentum: float = 0.9
) -> LocalSteps:
    """Exchange what the next pass in bfloat16 sees of the change of `period` local steps, with an outer optimizer.

    PULSELoCo (arXiv:2602.03839), for small rates, as of reinforcement learning. How much is sent depends on the
    training; predictions take it to be `assumed_density` of the elements. Details: `VisibleChangesExecutor`.

    >>> str(pulse_loco().averaging)
    'VisibleChanges(assumed_density=0.03)'
    """
    averaging = VisibleChanges(assumed_density=assumed_density)
    return LocalSteps(period=period, averaging=averaging, outer=Outer(lr=outer_lr, momentum=outer_momentum))
