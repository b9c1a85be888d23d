"""Rounds of changes that go to servers in two tiers."""

import numpy as np

from pliant.netmodel import BucketBatch, PointToPoint, Round, passes
from pliant.simulator.owner_rounds import payloads
from pliant.spec import RegionServers

__all__ = ["region_rounds"]


def region_rounds(node: RegionServers, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Return what all ranks send to servers in a period, and what these answer: a share of the rarer ones of regions.

    All are taken to be equally fast, and a region to ask again as soon as it has been answered.
    """
    servers = np.array([node.server_of(rank) for rank in range(num_ranks)])
    serves = np.array([node.serves(rank) for rank in range(num_ranks)])
    ranks, in_region = np.arange(num_ranks), np.bincount(np.arange(num_ranks) // node.region_ranks)
    rounds: list[Round] = []
    for asking, share in (
        (ranks[~serves], np.ones(num_ranks - len(in_region))),
        (ranks[serves][1:], in_region[1:] / node.arrivals),
    ):
        if not len(asking):
            continue
        size, most = payloads(node.payload_codec, batch.numel), float(np.bincount(servers[asking]).max())
        question = PointToPoint(source=asking, target=servers[asking], share=share, num_bytes=size)
        answer = PointToPoint(source=servers[asking], target=asking, share=share, num_bytes=size)
        rounds += [
            Round(messages=question, posted=True, before=passes(batch, 2)),
            Round(messages=answer, posted=True, before=passes(batch, 3 * most), after=passes(batch, 3)),
        ]
    return rounds
