"""Bytes of one rank that leave or reach its host: what its own network interface and its bus have to carry."""

import numpy as np

from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.messages import DenseExchange, Floats, HostExchange, Messages, PointToPoint, RankMatrix, Together

__all__ = ["bytes_outside"]


def bytes_outside(messages: Messages, links: Interfaces) -> tuple[Floats, Floats]:
    """Return the bytes of each rank to ranks of other hosts, and from them, (num_buckets, num_ranks) both."""
    if isinstance(messages, Together):
        out, into = bytes_outside(messages.parts[0], links)
        for part in messages.parts[1:]:
            more_out, more_into = bytes_outside(part, links)
            out += more_out
            into += more_into
        return out, into
    if isinstance(messages, PointToPoint):
        share = messages.share * (links.host_of[messages.source] != links.host_of[messages.target])
        ends = (np.bincount(end, share, links.num_ranks) for end in (messages.source, messages.target))
        out, into = (messages.num_bytes[:, None] * each for each in ends)
        return out, into
    if isinstance(messages, RankMatrix):
        apart = (links.host_of[:, None] != links.host_of).astype(np.float64)
        return (messages.num_bytes * apart).sum(-1), (messages.num_bytes * apart).sum(-2)
    if isinstance(messages, HostExchange):
        outside = 0.0 if messages.stays_inside else 1.0
        return messages.out * outside, messages.into * outside
    return _of_dense(messages, links)


def _of_dense(messages: DenseExchange, links: Interfaces) -> tuple[Floats, Floats]:
    give, take = np.broadcast_arrays(messages.give, messages.take)
    others = [_sum_elsewhere(x, links) for x in (take, give)]
    return give * others[0], take * others[1]


def _sum_elsewhere(x: Floats, links: Interfaces) -> Floats:
    """Return the sum over ranks of other hosts, (num_buckets, num_ranks)."""
    return x.sum(axis=1, keepdims=True) - np.add.reduceat(x, links.starts, axis=1)[:, links.host_of]
