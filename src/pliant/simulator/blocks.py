"""Traffic of an exchange of chosen blocks."""

from collections.abc import Callable, Sequence

import numpy as np

from pliant.layouts.blocks import divide_blocks
from pliant.netmodel import DenseExchange, Floats
from pliant.simulator.collective_rounds import average, ring_all_gather
from pliant.simulator.round import Round
from pliant.spec import Selection

__all__ = ["blocks"]


def blocks(
    selection: Selection,
    shapes: Sequence[Sequence[tuple[int, ...]]],
    num_ranks: int,
    coded: Callable[[Floats], list[Round]],
) -> list[Round]:
    """Return the rounds of an exchange at the final ratio: scores or a mask, values, and payloads of local choices.

    A leader's mask counts as the mean of the turns of all ranks.

    Args:
        selection: After its ramp, and without relief.
        shapes: Per bucket, of its tensors.
        num_ranks: n.
        coded: From elements, (num_buckets,), to the rounds of an average that travels in codes.

    Raises:
        ValueError: Sums get a schedule, so that what is sent depends on what each rank has chosen.

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
    rounds = average(told, num_ranks, value_bytes=2, in_parts=True) if told.any() else []
    if selection.agreement == "leader":
        give = np.repeat(masks[:, None] / num_ranks, num_ranks, 1)
        rounds.append(Round(messages=DenseExchange(give=give, take=np.ones((1, num_ranks)))))
    bits = np.array([each.bits(ratio) for each in parts])
    for each in np.unique(bits):
        of_these = message * (bits == each)
        rounds += coded(of_these) if each == 4 else average(of_these, num_ranks, value_bytes=each // 8, in_parts=True)
    if payload.any():
        rounds.append(ring_all_gather(payload, num_ranks))
    return rounds
