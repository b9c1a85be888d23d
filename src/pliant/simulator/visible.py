"""Rounds of changes that are sent where they are visible."""

import numpy as np

from pliant.netmodel import BucketBatch, Round, passes, work
from pliant.simulator.collective_rounds import all_gather, not_posted, of_buckets, ring
from pliant.spec import VisibleChanges

__all__ = ["visible_rounds"]


def visible_rounds(node: VisibleChanges, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Return the rounds of `MarkedAverage`, if each rank has as many elements to send as the node takes it to have."""
    most = np.ceil(node.assumed_density * batch.numel)
    everything = most > batch.numel // 3
    added = {"reduce_bytes": 12.0 * num_ranks * most}
    return [
        work(passes(batch, 5)),
        *all_gather(np.full_like(batch.numel, 8.0), num_ranks),
        *of_buckets(everything, [ring(4 * batch.numel, num_ranks)]),
        *of_buckets(~everything, [*not_posted(all_gather(8 * most, num_ranks)), work(added)]),
    ]
