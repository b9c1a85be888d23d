"""Functions for combinators: each returns a node that holds another. No torch here."""

from dataclasses import replace
from typing import Any, TypeVar

from pliant.algorithms.inputs import AlgorithmLike, node_of
from pliant.spec import (
    After,
    AllGather,
    AllReduce,
    BetweenGroups,
    BetweenHosts,
    BetweenRacks,
    BlockSparse,
    Delayed,
    Every,
    Exchange,
    Target,
)

__all__ = ["after", "between_hosts", "between_racks", "delayed", "every", "with_target"]

A = TypeVar("A", bound=Exchange)


def every(period: int, algorithm: AlgorithmLike) -> Every:
    """Exchange gradients in every `period`-th step; those of the steps between are added to it.

    In the steps between the optimizer gets zeros, so that its momentum, its variance and its weight decay go on.

    >>> from pliant import qsgd
    >>> str(every(4, qsgd()))
    'Every(inner=ScatterGather(codec=qsgd), steps=4)'
    """
    return Every(steps=period, inner=node_of(algorithm))


def delayed(algorithm: AlgorithmLike | None = None, *, compensation: float = 0.0, lookahead: float = 0.0) -> Delayed:
    """Use gradients one step late, so that their exchange has a whole step's time (Pipe-SGD, arXiv:1811.03619).

    Args:
        algorithm: An algorithm of gradients; exact averaging if None.
        compensation: Factor of the correction for what weights have done meanwhile (DC-ASGD, arXiv:1609.08326).
        lookahead: Factor of the extrapolation; the bare name, ``relax(model, optimizer, "late")``, takes the momentum.

    >>> str(delayed())
    'Delayed(inner=AllReduce)'

    """
    return Delayed(
        inner=AllReduce() if algorithm is None else node_of(algorithm), compensation=compensation, lookahead=lookahead
    )


def after(num_steps: int, first: AlgorithmLike, *, then: AlgorithmLike) -> After:
    """Use `first` for `num_steps` steps, and `then` afterwards.

    >>> from pliant import bf16, onebit
    >>> str(after(100, bf16(), then=onebit()))
    "After(steps=100, first=AllReduce(codec=bf16), then=ScatterGather(codec=sign, feedback='both'))"
    """
    return After(steps=num_steps, first=node_of(first), then=node_of(then))


def between_hosts(algorithm: AlgorithmLike) -> BetweenHosts:
    """Sum exactly inside each host, and run an algorithm between hosts.

    Raises:
        ValueError: The algorithm is between hosts already, has owners at a free pace, or meets in pairs.

    >>> from pliant import qsgd
    >>> str(between_hosts(qsgd()))
    'BetweenHosts(inner=ScatterGather(codec=qsgd))'

    """
    return BetweenHosts(inner=node_of(algorithm))


def between_racks(algorithm: AlgorithmLike) -> BetweenRacks:
    """Sum exactly inside each rack, and run an algorithm between racks; `between_hosts` around it sums in hosts first.

    Each rank names its rack: ``pliant.relax(..., rack="r1")``.

    Raises:
        ValueError: The algorithm is between hosts or racks already, or has owners.

    >>> from pliant import int4
    >>> str(between_hosts(between_racks(int4())))
    "BetweenHosts(inner=BetweenRacks(inner=ScatterGather(codec=int4, feedback='both')))"

    """
    return BetweenRacks(inner=node_of(algorithm))


def with_target(
    algorithm: A,
    *,
    exposed_s: float | None = None,
    exposed_share: float | None = None,
    bytes_per_step: float | None = None,
    bytes_per_s: float | None = None,
    floor: float = Target.floor,
    ceiling: float = Target.ceiling,
    effort: float = Target.effort,
) -> A:
    """Set a sparsifier's ratio while training, such that a target is met; it begins with its own ratio.

    `pliant.algorithms.control.RatioPolicy` says how the ratio is found.

    Args:
        algorithm: `tasc`, `topk` or `blocktopk`, also between hosts or racks, with the ratio to begin with.
        exposed_s: Seconds that a step may wait for its exchange after backward.
        exposed_share: The same over the rest of the step: 0.1 makes steps a tenth longer than without a network.
        bytes_per_step: Bytes that the rank with most to send sends in a step.
        bytes_per_s: The same in a second.
        floor: The least ratio.
        ceiling: The largest; of `tasc` at most the one that sends everything in values of its bits.
        effort: Share of a step that the selection may take before one selection serves for several steps.

    Raises:
        ValueError: None, or more than one, of the four targets is given, or one that cannot be.
        TypeError: The algorithm has no ratio to set.

    >>> from pliant import topk
    >>> str(with_target(topk(), exposed_share=0.1))
    "AllGather(codec=topk, target=Target(of='exposed_share', value=0.1))"

    """
    given = {
        "exposed_s": exposed_s,
        "exposed_share": exposed_share,
        "bytes_per_step": bytes_per_step,
        "bytes_per_s": bytes_per_s,
    }
    chosen = [(of, value) for of, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise ValueError(
            f"with_target() was given {len(chosen)} targets, but a ratio can hold one; give one of {', '.join(given)}."
        )
    of, value = chosen[0]
    target = Target(of=of, value=value, floor=floor, ceiling=ceiling, effort=effort)  # pyright: ignore[reportArgumentType]
    return _with_target(algorithm, target)


def _with_target(algorithm: Any, target: Target) -> Any:
    if isinstance(algorithm, BetweenGroups):
        return replace(algorithm, inner=_with_target(algorithm.inner, target))
    if not isinstance(algorithm, (AllGather, BlockSparse)):
        raise TypeError(
            f"with_target() was given a {type(algorithm).__name__}, which has no ratio to set; give it tasc, topk or "
            "blocktopk, and put every(), delayed() and others around it."
        )
    if isinstance(algorithm, BlockSparse):
        target = replace(target, ceiling=min(target.ceiling, algorithm.selection.value_bytes / 4))
    return replace(algorithm, target=target)
