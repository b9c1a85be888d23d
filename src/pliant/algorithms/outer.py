"""Functions for local steps with an outer optimizer: each returns a node of a plan. No torch here."""

from dataclasses import replace

from pliant.algorithms.gradients import int4
from pliant.algorithms.inputs import AlgorithmLike, averaging_of, node_of
from pliant.spec import After, AllReduce, LocalSteps, NeighborMean, Outer
from pliant.spec.outer import outer_lr_for, outer_momentum_for

__all__ = ["decoupled_diloco", "delayed_nesterov", "diloco", "muloco", "no_loco", "pier", "streaming_diloco"]


def diloco(
    period: int = 32,
    *,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    averaging: AlgorithmLike | None = None,
    total_steps: int = 0,
    num_ranks: int = 4,
) -> LocalSteps:
    """Give the mean change of `period` local steps to an outer Nesterov optimizer (DiLoCo, arXiv:2311.08105).

    Args:
        period: Steps from one exchange to the next.
        outer_lr: Rate of the outer optimizer; if None, 0.7 up to 4 ranks, rising to 1 at 16.
        outer_momentum: Its momentum; if None, 0.9, or with `total_steps` min(0.9, max(0, 1 - 10 period / total_steps)),
            which remembers a tenth of the training's rounds.
        averaging: Any algorithm that averages changes at once; exact if None.
        total_steps: Steps of the whole training, if they are known.
        num_ranks: Ranks that will train, for the rate alone.

    >>> str(diloco(averaging=int4()).averaging)
    "ScatterGather(codec=int4, feedback='both')"
    >>> diloco(total_steps=800, num_ranks=16).outer.momentum
    0.6

    """
    outer = _outer(period, outer_lr, outer_momentum, total_steps, num_ranks)
    return LocalSteps(period=period, averaging=averaging_of(averaging), outer=outer)


def streaming_diloco(
    period: int = 32,
    *,
    fragments: int = 4,
    delay_steps: int = 2,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    averaging: AlgorithmLike | None = None,
    total_steps: int = 0,
    num_ranks: int = 4,
) -> LocalSteps:
    """Exchange DiLoCo's changes in fragments, in 4 bits, beside the training (Streaming DiLoCo, arXiv:2501.18512).

    Settings of the outer optimizer are those of `diloco`. `averaging` is any algorithm that averages changes at once,
    such as ``sigma2(decay=0.9)``; `int4` if None.

    >>> streaming_diloco(fragments=2).fragments
    2
    """
    outer = _outer(period, outer_lr, outer_momentum, total_steps, num_ranks)
    averaging = node_of(averaging or int4())
    return LocalSteps(period=period, averaging=averaging, outer=outer, fragments=fragments, delay_steps=delay_steps)


def muloco(
    period: int = 30,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.6,
    averaging: AlgorithmLike | None = None,
    *,
    fragments: int = 1,
    delay_steps: int = 0,
) -> LocalSteps:
    """Use DiLoCo with Muon inside, and an outer momentum that fits it (MuLoCo, Therien et al., arXiv:2505.23725).

    Muon must be among the run's optimizers, as in ``relax(model, [muon, adamw], "muloco")``.

    >>> muloco(fragments=3, delay_steps=2).outer.momentum
    0.6
    """
    return LocalSteps(
        period=period,
        averaging=averaging_of(averaging),
        outer=Outer(lr=outer_lr, momentum=outer_momentum),
        fragments=fragments,
        delay_steps=delay_steps,
        inner_optimizer="Muon",
    )


def pier(
    total_steps: int,
    period: int = 32,
    *,
    warmup_steps: int | None = None,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    last_momentum: float | None = None,
    first: AlgorithmLike | None = None,
    averaging: AlgorithmLike | None = None,
    num_ranks: int = 4,
) -> After:
    """Let DiLoCo's momentum gather in an exact warm-up and decay later (Pier, Fan and Zhang, arXiv:2511.17849).

    The defaults of the warm-up and of the decay are Pliant's.

    Args:
        total_steps: Steps of the whole training.
        period: Steps from one exchange to the next.
        warmup_steps: Steps in which gradients are exchanged; a tenth of all if None.
        outer_lr: As for `diloco`.
        outer_momentum: The momentum until the end of the warm-up; as for `diloco` if None.
        last_momentum: The momentum at the end of the training, to which it falls linearly; half of it if None.
        first: How gradients are exchanged in the warm-up; exactly if None, as in the paper.
        averaging: As for `diloco`.
        num_ranks: As for `diloco`.

    Raises:
        ValueError: The training is too short for an outer momentum, or for the warm-up.

    >>> [pier(3200).then.outer.momentum_at(step) for step in (0, 320, 3200)]
    [0.9, 0.9, 0.45]

    """
    warmup_steps = max(1, total_steps // 10) if warmup_steps is None else warmup_steps
    outer = _outer(period, outer_lr, outer_momentum, total_steps, num_ranks)
    _require_momentum(outer, period, "pier is about an outer momentum", "use local_sgd")
    if not 0 < warmup_steps < total_steps:
        raise ValueError(
            f"pier begins with a warm-up that ends within the training, but warmup_steps is {warmup_steps} of "
            f"{total_steps}; set warmup_steps from 1 to less than total_steps."
        )
    last = outer.momentum / 2 if last_momentum is None else last_momentum
    outer = replace(outer, momentum_points=((warmup_steps / total_steps, outer.momentum), (1.0, last)))
    then = LocalSteps(period=period, averaging=averaging_of(averaging), outer=outer)
    exchange = AllReduce() if first is None else node_of(first)
    return After(steps=warmup_steps, first=exchange, then=then, gathers_momentum=True)


def no_loco(
    period: int = 50, *, outer_lr: float = 0.7, outer_momentum: float = 0.5, pull: float = 1.0, fragments: int = 1
) -> LocalSteps:
    """Average the changes of `period` local steps in random pairs of ranks, and nowhere all (NoLoCo, arXiv:2506.10911).

    Each rank has an outer optimizer of its own, which draws the pair's starting points together. Defaults are those of
    the authors' runs. Codecs are for changes, and pairs send weights, so there is none.

    Args:
        period: Steps from one exchange to the next.
        outer_lr: Rate of the outer optimizer.
        outer_momentum: Its momentum, which does not look ahead.
        pull: Rate at which points are drawn together, as a part of `outer_lr`, above 0 and up to 1.
        fragments: As for `streaming_diloco`.

    >>> str(no_loco(pull=0.5).averaging)
    'NeighborMean(pull=0.5)'

    """
    outer = Outer(lr=outer_lr, momentum=outer_momentum, nesterov=False)
    return LocalSteps(period=period, averaging=NeighborMean(pull=pull), outer=outer, fragments=fragments)


def delayed_nesterov(
    period: int = 8,
    *,
    every: int = 4,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    averaging: AlgorithmLike | None = None,
    total_steps: int = 0,
    num_ranks: int = 4,
) -> LocalSteps:
    """Average changes in the background, with an outer momentum for several averages together (arXiv:2401.09135).

    Delayed Nesterov with dynamic local updates (Liu et al.): an average begins when the fastest rank has made `period`
    steps, and takes from each rank as many as its pace allows, of which it counts by their number.

    Args:
        period: Steps of the fastest rank from one average to the next.
        every: Averages from one step of the outer momentum to the next.
        outer_lr: As for `diloco`.
        outer_momentum: As for `diloco`, of periods as long as `every` averages.
        averaging: As for `diloco`.
        total_steps: Steps of the fastest rank in the whole training, if they are known.
        num_ranks: As for `diloco`.

    >>> delayed_nesterov().outer.every
    4

    """
    outer = _outer(period * every, outer_lr, outer_momentum, total_steps, num_ranks)
    if every > 1:
        _require_momentum(outer, period * every, "delayed_nesterov delays an outer momentum", "use async_average")
    outer = replace(outer, every=every)
    return LocalSteps(period=period, averaging=averaging_of(averaging), outer=outer, pace="free", weighted=True)


def decoupled_diloco(
    period: int = 32,
    *,
    quorum: int = -1,
    grace_s: float = 0.0,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    averaging: AlgorithmLike | None = None,
    total_steps: int = 0,
    num_ranks: int = 4,
) -> LocalSteps:
    """Average changes in the background once enough ranks have made their period (Decoupled DiLoCo, arXiv:2604.21428).

    Each rank counts by its work times its work of a step, which `run.count` reports; without reports by its steps. One
    whose period is not over takes the new common point, keeps its progress, and counts in a later round. The quorum of
    all ranks but one is Pliant's, as the outer settings are.

    Args:
        period: Steps of a rank from one round in which it counts to the next.
        quorum: Ranks whose period must be over; below 0, all but so many.
        grace_s: Seconds for which others are waited for from then on, while all go on with their steps.
        outer_lr: As for `diloco`.
        outer_momentum: As for `diloco`.
        averaging: As for `diloco`.
        total_steps: Steps of the fastest rank in the whole training, if they are known.
        num_ranks: As for `diloco`.

    >>> str(decoupled_diloco(16, quorum=3, outer_momentum=0.0, outer_lr=1))
    "LocalSteps(period=16, pace='free', weighted=True, quorum=3)"

    """
    return LocalSteps(
        period=period,
        averaging=averaging_of(averaging),
        outer=_outer(period, outer_lr, outer_momentum, total_steps, num_ranks),
        pace="free",
        weighted=True,
        quorum=quorum,
        grace_s=grace_s,
    )


def _outer(period: int, lr: float | None, momentum: float | None, total_steps: int, num_ranks: int) -> Outer:
    """Return the outer optimizer of rounds of `period` steps, with defaults for what is None."""
    if momentum is None:
        momentum = outer_momentum_for(total_steps, period) if total_steps else 0.9
    return Outer(lr=outer_lr_for(num_ranks) if lr is None else lr, momentum=momentum, total_steps=total_steps)


def _require_momentum(outer: Outer, period: int, what: str, instead: str) -> None:
    """Raise ValueError where the momentum that an algorithm needs is 0, as it is in a training of few periods."""
    if not outer.momentum:
        raise ValueError(
            f"{what}, for which {outer.total_steps} steps in periods of {period} are too few; set outer_momentum or a "
            f"shorter period, or {instead}."
        )
