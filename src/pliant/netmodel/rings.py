"""Rings of an all-reduce over Gloo: the delays of their hops, and the round trips of their segments.

A rank of Gloo's ring has two segments of a block on their way, each of at most 1 MiB, and sends a segment once the next
rank has told that it waits for it (gloo/allreduce.cc; gloo/transport/tcp/pair.cc). So of a block of k segments that
takes T on the wire two leave in T / k and a round trip r, and a round takes max(T, T / 2 + k r / 2).
"""

import numpy as np

from pliant.netmodel.messages import Floats
from pliant.netmodel.paths import connections_of
from pliant.spec.slices import RING_SEGMENT_BYTES

__all__ = ["hold_s", "lag_s", "turn_s"]

_TWO_BYTES = 8
"""Bytes of two numbers, the least that make two segments: of a flag nothing waits, since it has one way to go."""


def _path_s(hops_s: Floats, num_hops: int) -> Floats:
    """Return the time of the longest path of so many hops around a ring, (...,), from those of its hops, (..., num)."""
    num = hops_s.shape[-1]
    whole, rest = divmod(num_hops, num)
    before_s = np.cumsum(np.concatenate([np.zeros_like(hops_s[..., :1]), hops_s, hops_s], axis=-1), axis=-1)
    windows_s = before_s[..., rest : rest + num] - before_s[..., :num]
    return whole * hops_s.sum(-1) + windows_s.max(-1)


def lag_s(block_s: Floats, delay_s: Floats, waits_s: Floats, num_rounds: int) -> Floats:
    """Return what rounds around a ring take beyond the busiest hop's time of each, (num_buckets,).

    In each round a block stays on a hop, where the one behind it leaves after `hold_s`, or moves on to the next after
    its time T and a delay. The longest way through all rounds counts: on one hop, around the ring, or on one hop and
    from there over the hops beside it.

    Args:
        block_s: Time T of a block on each hop, in the order in which blocks pass them, (num_buckets, num_hops).
        delay_s: Delay of each hop, (num_hops,).
        waits_s: Round trips for which segments wait, see `turn_s`, (num_buckets, num_hops).
        num_rounds: Rounds.

    """
    stays_s, moves_s = hold_s(block_s, waits_s), block_s + delay_s
    longest_s = np.maximum(_path_s(moves_s, num_rounds), num_rounds * stays_s.max(1))
    rows, slowest = np.arange(len(block_s)), stays_s.argmax(1)
    gains_s = moves_s - stays_s[rows, slowest, None]
    gains_s = gains_s[rows[:, None], (slowest[:, None] + np.arange(block_s.shape[1])) % block_s.shape[1]]
    beside_s = [np.maximum(np.cumsum(side, axis=1), 0.0).max(1) for side in (gains_s, gains_s[:, :0:-1]) if side.size]
    mixed_s = num_rounds * stays_s[rows, slowest] + sum(beside_s)
    longest_s = np.where(gains_s.sum(1) <= 0, np.maximum(longest_s, mixed_s), longest_s)
    return longest_s - num_rounds * block_s.max(1)


def hold_s(block_s: Floats, waits_s: Floats) -> Floats:
    """Return the time from a block on a hop to the next one there: max(T, T / 2 + k r / 2), for T and what waits."""
    return np.maximum(block_s, block_s / 2 + waits_s)


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
