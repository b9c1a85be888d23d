"""Time of NCCL's collectives in closed form: NCCL's own model, by which it chooses between rings, trees and protocols.

For n ranks on h hosts and a vector of S bytes, with the rate B of the busiest link that a ring uses (NVIDIA/nccl,
release 2.10, src/graph/tuning.cc, seconds here):

    ring:  base + (2 (n-1) - 2 (h-1)) intra + 2 (h-1) net  +  2 (n-1)/n S / B
    tree:  base + 2 ((n/h - 1) intra + log2(h) net)        +  2 S / min(0.9 B, cap)

each for the protocols LL, LL128 and Simple, with a rate below B. The choice is the least sum; it knows nothing of
delays that somebody has added to a network, which come on top: 2 (h-1) around a ring, 2 log2(h) along a tree.
"""

from dataclasses import dataclass

import numpy as np

from pliant.netmodel.messages import Floats

__all__ = ["CollectiveChoice", "choose_collective"]

_US = 1e-6
_RING_BASE = np.array([3.6, 10.0, 8.4]) * _US
_TREE_BASE = np.array([4.4, 4.4, 0.0]) * _US
_RING_HOP = {"nvlink": np.array([0.47, 1.9, 3.4]) * _US, "pcie": np.array([1.0, 2.5, 5.7]) * _US}
_TREE_HOP = {"nvlink": np.array([0.52, 1.2, 28.0]) * _US, "pcie": np.array([1.0, 1.9, 28.0]) * _US}
_RING_NET, _TREE_NET = np.array([2.7, 4.0, 9.6]) * _US, np.array([5.0, 8.5, 50.0]) * _US
"""Latencies of LL, LL128 and Simple: to begin, of a hop inside a host, and of one between hosts."""
_LL_FACTOR = 1.8
"""Of hops inside hosts under LL, where there are several hosts."""
_PLATEAU_FACTOR, _PLATEAU_BYTES = 1.9, 65536 / 16
"""Factor of the latency of Simple's ring between hosts, from so many bytes for each rank on."""
_CAP_ONE, _CAP_MANY = 110e9, 80e9
"""Bytes per second of a tree on at most two hosts, and on more."""
_TREE_SHARES = np.array(
    [
        [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1, 1],
        [
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.8,
            0.7,
            0.6,
            0.6,
            0.5,
            0.5,
            0.5,
            0.5,
            0.5,
            0.5,
            0.6,
            0.6,
            0.7,
            0.8,
            0.9,
            1,
        ],
    ]
)
"""Share of a tree's rate that is reached with 64 bytes, 128 bytes, and so on, doubled; all of it from 256 MiB on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectiveChoice:
    """Form that NCCL takes for each bucket."""

    factor: Floats
    """(num_buckets,): time of the bytes over that of a ring at the full rate."""
    latency_s: Floats
    """(num_buckets,): of all hops, without the delays of the topology."""
    delays: Floats
    """(num_buckets,): delays between hosts one after another, over those of a ring."""


def choose_collective(
    num_bytes: Floats, ring_s: Floats, num_ranks: int, num_hosts: int, inside: str, *, all_reduce: bool
) -> CollectiveChoice:
    """Return NCCL's choice for an all-reduce, or for an all-gather or a reduce-scatter, which are always rings.

    Args:
        num_bytes: Of the whole vector, (num_buckets,).
        ring_s: Time of a ring's bytes at the full rate, (num_buckets,).
        num_ranks: n, at least 2.
        num_hosts: h.
        inside: Between GPUs of a host: 'nvlink' or 'pcie'. LL128 needs NVLink.
        all_reduce: Whether it goes around twice.

    """
    turns = 2.0 if all_reduce else 1.0
    several = num_hosts > 1
    hop = np.where([several, False, False], _LL_FACTOR, 1.0)
    between = turns * (num_hosts - 1)
    lead_s = _RING_BASE + (turns * (num_ranks - 1) - between) * hop * _RING_HOP[inside] + between * _RING_NET
    lead_s = np.tile(lead_s, (len(num_bytes), 1))  # (num_buckets, num_protocols)
    if several and all_reduce:
        lead_s[:, 2] *= np.where(num_bytes >= num_ranks * _PLATEAU_BYTES, _PLATEAU_FACTOR, 1.0)
    alone = num_ranks < 2 * num_hosts
    slower = np.tile([4.0 if several or all_reduce else 3.0, 1 / (0.7 if alone else 0.92), 1.0], (len(num_bytes), 1))
    delays = np.ones_like(lead_s)
    if all_reduce:
        depth = np.log2(num_hosts)
        inner = max(num_ranks / num_hosts - 1, 0.0) * hop * _TREE_HOP[inside]
        tree_s = np.tile(_TREE_BASE + 2 * (inner + depth * _TREE_NET), (len(num_bytes), 1))
        lead_s = np.concatenate([lead_s, tree_s], axis=1)
        slower = np.concatenate([slower, _tree_factors(num_bytes, ring_s, num_ranks, num_hosts)], axis=1)
        delays = np.concatenate([delays, np.full_like(tree_s, depth / max(num_hosts - 1, 1))], axis=1)
    total_s = lead_s + slower * ring_s[:, None]
    if inside != "nvlink":
        total_s[:, 1::3] = np.inf
    at, best = np.arange(len(num_bytes)), total_s.argmin(axis=1)
    return CollectiveChoice(factor=slower[at, best], latency_s=lead_s[at, best], delays=delays[at, best])


def _tree_factors(num_bytes: Floats, ring_s: Floats, num_ranks: int, num_hosts: int) -> Floats:
    """Return a tree's time over a ring's, (num_buckets, num_protocols)."""
    ring_share = 2 * (num_ranks - 1) / num_ranks
    cap = _CAP_MANY if num_hosts > 2 else _CAP_ONE
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(ring_s > 0, ring_share * num_bytes / ring_s, np.inf)  # (num_buckets,)
    limited = np.minimum(0.9 * rate, cap)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(np.isfinite(rate), 2 / ring_share * rate / limited, 1.0)
    doublings = np.clip(np.log2(np.maximum(num_bytes, 64.0) / 64).astype(np.int64), 0, _TREE_SHARES.shape[1] - 1)
    protocols = np.array([3.8, 1 / (7 / 9 if num_hosts == 1 else 0.915), 1.0])
    return factor[:, None] * protocols / _TREE_SHARES[:, doublings].T
