"""A sparsifier whose ratio follows the network: what makes TASC dynamic."""

from dataclasses import replace

from pliant.algorithms.sparse import Sparse
from pliant.spec import Target

__all__ = ["dynamic"]


def dynamic(
    algorithm: Sparse,
    *,
    exposed_s: float | None = None,
    exposed_share: float | None = None,
    bytes_per_step: float | None = None,
    bytes_per_s: float | None = None,
    floor: float = Target.floor,
    ceiling: float = Target.ceiling,
    effort: float = Target.effort,
) -> Sparse:
    """Let a sparsifier's ratio be set, while training goes on, such that a target is held; begin with its own.

    How the ratio is found is said at `pliant.algorithms.control.BudgetControl`.

    Args:
        algorithm: `topk` or `blocktopk`, with the ratio to begin with.
        exposed_s: Seconds that a step may wait for its exchange after backward.
        exposed_share: The same over the rest of the step: 0.1 makes steps a tenth longer than without a network.
        bytes_per_step: Bytes that leave the rank that sends most in a step.
        bytes_per_s: The same in a second.
        floor: The least ratio.
        ceiling: The largest.
        effort: Share of a step that choosing what is sent may take before it is done less often.

    Raises:
        ValueError: None, or more than one, of the four targets is given, or one that cannot be.

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
            f"dynamic() was given {len(chosen)} targets, but a ratio can hold one; give one of {', '.join(given)}."
        )
    of, value = chosen[0]
    target = Target(of=of, value=value, floor=floor, ceiling=ceiling, effort=effort)  # pyright: ignore[reportArgumentType]
    return replace(algorithm, target=target)
