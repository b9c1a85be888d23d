"""Combinators, by the names that users type: each returns a node that holds another. No torch here."""

from dataclasses import replace
from typing import Any, TypeVar

from pliant.algorithms.inputs import AlgorithmLike, node_of
from pliant.spec import After, AllGather, AllReduce, BetweenHosts, BlockSparse, Delayed, Every, Exchange, Target

__all__ = ["after", "between_hosts", "with_target", "every", "delayed"]

A = TypeVar("A", bound=Exchange)


def every(period: int, algorithm: AlgorithmLike) -> Every:
    """Exchange in every `period`-th step."""
    return Every(steps=period, inner=node_of(algorithm))


def delayed(algorithm: AlgorithmLike | None = None, *, compensation: float = 0.0, lookahead: float = 0.0) -> Delayed:
    """Use gradients one step late, so that their exchange has a whole step's time.

    Without an algorithm they are averaged exactly. The bare name takes the optimizer's momentum as its lookahead.
    """
    return Delayed(
        inner=AllReduce() if algorithm is None else node_of(algorithm), compensation=compensation, lookahead=lookahead
    )


def after(num_steps: int, first: AlgorithmLike, *, then: AlgorithmLike) -> After:
    """Use `first` for `num_steps` steps, `then` afterwards."""
    return After(steps=num_steps, first=node_of(first), then=node_of(then))


def between_hosts(algorithm: AlgorithmLike) -> BetweenHosts:
    """Run an algorithm between hosts, and exact sums inside them.

    Raises:
        ValueError: The algorithm is between hosts already, or has owners.

    """
    return BetweenHosts(inner=node_of(algorithm))


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
    """Let a sparsifier's ratio be set, while training goes on, such that a target is held; begin with its own.

    How the ratio is found is said at `pliant.algorithms.control.RatioPolicy`.

    Args:
        algorithm: `tasc`, `topk` or `blocktopk`, also between hosts, with the ratio to begin with.
        exposed_s: Seconds that a step may wait for its exchange after backward.
        exposed_share: The same over the rest of the step: 0.1 makes steps a tenth longer than without a network.
        bytes_per_step: Bytes that leave the rank that sends most in a step.
        bytes_per_s: The same in a second.
        floor: The least ratio.
        ceiling: The largest; of `tasc` at most the one that sends everything in values of its bits.
        effort: Share of a step that choosing what is sent may take, before what was found out serves longer.

    Raises:
        ValueError: None, or more than one, of the four targets is given, or one that cannot be.
        TypeError: The algorithm has no ratio to set.

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
    if isinstance(algorithm, BetweenHosts):
        return replace(algorithm, inner=_with_target(algorithm.inner, target))
    return _with_target(algorithm, target)


def _with_target(algorithm: Any, target: Target) -> Any:
    if not isinstance(algorithm, (AllGather, BlockSparse)):
        raise TypeError(
            f"with_target() was given a {type(algorithm).__name__}, which has no ratio to set; give it tasc, topk or "
            "blocktopk, and put every(), delayed() and others around it."
        )
    if isinstance(algorithm, BlockSparse):
        target = replace(target, ceiling=min(target.ceiling, algorithm.selection.value_bytes / 4))
    return replace(algorithm, target=target)
