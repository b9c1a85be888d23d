"""Traffic of an exchange of chosen blocks."""

from collections.abc import Callable, Sequence

import numpy as np

from pliant.layouts.blocks import divide_blocks
from pliant.netmodel import Floats, Round
from pliant.simulator.collective_rounds import all_gather, average, broadcast
from pliant.spec import Selection

__all__ = ["blocks"]


def blocks(
    selection: Selection,
    shapes: Sequence[Sequence[tuple[int, ...]]],
    num_ranks: int,
    coded: Callable[[Floats], list[Round]],
    *,
    by_ring: bool = False,
) -> list[Round]:
    """Return the rounds of an exchange of blocks at the final ratio: scores or a mask, values, and payloads.

    A leader's mask counts as the mean over all leaders.

    Args:
        selection: After its ramp, and without relief.
        shapes: Per bucket, of its tensors.
        num_ranks: Ranks that take part.
        coded: From elements, (num_buckets,), to the rounds of an average in codes.
        by_ring: Whether all sums are rings, whatever their length, so are gathers, and masks go down trees.

    Raises:
        ValueError: Sums get a schedule, so that messages depend on each rank's selection.

    """
    if selection.topology is not None and selection.agreement == "local":
        raise ValueError(
            "what a schedule for local choices moves depends on how much the ranks' choices overlap, which nobody "
            "knows beforehand; simulate it without the topology, as gathered payloads, or measure it."
        )
    ratio = selection.ratio
    parts = [divide_blocks(of_bucket, selection, num_ranks) for of_bucket in shapes]
    told = np.array([float(each.told_numel(ratio)) for each in parts])
    masks = np.array([float(each.mask_bytes * (not each.is_whole(ratio))) for each in parts])
    message = np.array([float(each.message_numel(ratio)) for each in parts])
    payload = np.array([float(each.payload_bytes(ratio)) for each in parts])
    rounds = average(told, num_ranks, value_bytes=2, in_parts=True, by_ring=by_ring)
    if selection.agreement == "leader":
        rounds += broadcast(masks, num_ranks, by_tree=by_ring)
    bits = np.array([each.bits(ratio) for each in parts])
    for each in np.unique(bits):
        of_these = message * (bits == each)
        if each == 4:
            rounds += coded(of_these)
        else:
            rounds += average(of_these, num_ranks, value_bytes=each // 8, in_parts=True, by_ring=by_ring)
    return [*rounds, *all_gather(payload, num_ranks, by_ring=by_ring)]
