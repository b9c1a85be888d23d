"""Rings of an all-reduce over Gloo: the delays of their hops, and the round trips of their segments.

A rank of Gloo's ring has two segments of a block on their way, each of at most 1 MiB, and sends a segment once the next
rank has told that it waits for it (gloo/allreduce.cc; gloo/transport/tcp/pair.cc). So of a block of k segments that
takes T on the wire two leave in T / k and a round trip r, and a round takes max(T, T / 2 + k r / 2).
"""

import numpy as np

from pliant.netmodel.messages import Floats
from pliant.netmodel.paths import connections_of
from pliant.spec.slices import RING_SEGMENT_BYTES

__all__ = ["path_s", "turn_s"]

_TWO_BYTES = 8
"""Bytes of two numbers, the least that make two segments: of a flag nothing waits, since it has one way to go."""


def path_s(delay_s: Floats, num_hops: int) -> float:
    """Return the delay of the longest path of so many hops around a ring, from the delays of its hops, (num_hops,)."""
    whole, rest = divmod(num_hops, len(delay_s))
    before_s = np.concatenate([[0.0], np.cumsum(np.concatenate([delay_s, delay_s]))])
    windows_s = before_s[rest : rest + len(delay_s)] - before_s[: len(delay_s)]
    return whole * float(delay_s.sum()) + float(windows_s.max())


def turn_s(block_bytes: Floats, num_blocks: int, trip_s: Floats | float, connections: int) -> Floats:
    """Return the round trips for which the segments of a block wait, k r / 2, broadcast.

    Args:
        block_bytes: (num_buckets,)
        num_blocks: Blocks of the whole vector, which is cut for several connections.
        trip_s: Longest round trip of a hop, or that of each.
        connections: Connections that each two ranks have.

    """
    slice_bytes = block_bytes / connections_of(num_blocks * block_bytes, np.ones(1), connections)
    return trip_s * np.maximum(np.ceil(slice_bytes / RING_SEGMENT_BYTES) / 2, 1.0) * (block_bytes >= _TWO_BYTES)
