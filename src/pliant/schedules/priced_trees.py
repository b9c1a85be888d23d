"""Cheap trees of relays to a root, at prices of the resources of a network."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.netmodel import Floats, Links

__all__ = ["Prices", "Tree", "cheap_trees"]

_Moves = tuple[tuple[int, int, int], ...]
"""(Round, source, target) of each move of a tree."""
_FAR = 1e12
"""Cost of what cannot be reached yet, so that a relay that reaches it saves much."""
_LEAST_SAVED = 1e-12


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A way for a block's partial sums to its root, or for its sum from there."""

    root: int
    moves: _Moves


class Prices:
    """Seconds per byte of each pair of ranks on each resource: links, interfaces, uplinks and loopbacks."""

    def __init__(self, links: Links, max_delay_s: float) -> None:
        num, host_of = links.num_ranks, links.host_of
        self.num_ranks = num
        source, target = (ends.ravel() for ends in np.indices((num, num)))
        give, take = host_of[source], host_of[target]
        outside, factor = give != take, links.overheads.wire_factor
        inside_s = links.inside_factor / links.overheads.loopback_bytes_per_s
        rows: list[Floats] = []
        for host in range(links.num_hosts):
            rows.append(factor * links.out_s[host] * (outside & (give == host)))
            rows.append(factor * links.in_s[host] * (outside & (take == host)))
            rows.append(inside_s[host] * (~outside & (give == host)))
        for rack in range(len(links.up_s)):
            gives, takes = links.rack_of[give] == rack, links.rack_of[take] == rack
            rows.append(factor * links.up_s[rack] * (gives & ~takes))
            rows.append(factor * links.down_s[rack] * (takes & ~gives))
        for a, b, per_byte_s in zip(links.link_source, links.link_target, links.link_s, strict=True):
            rows.append(factor * per_byte_s * ((give == a) & (take == b)))
        table = np.array(rows)
        self.table = table[table.any(axis=1)]  # (num_resources, num_ranks^2)
        self.barred = ((source == target) | (links.delays_s[give, take] > max_delay_s) & outside).reshape(num, num)

    def of(self, duals: Floats) -> Floats:
        """Return what each pair costs, (num_ranks, num_ranks), at prices of the resources, (num_resources,)."""
        costs = (duals @ self.table).reshape(self.num_ranks, self.num_ranks)
        return np.where(self.barred, np.inf, costs)

    def load(self, pairs: Sequence[tuple[int, int]]) -> Floats:
        """Return the seconds per byte of messages along these pairs on each resource, (num_resources,)."""
        return self.table[:, [a * self.num_ranks + b for a, b in pairs]].sum(axis=1)


def cheap_trees(roots: Sequence[int], first: Floats, second: Floats | None) -> list[tuple[float, Tree]]:
    """Return a cheap tree to each root with its cost, which is infinite if some rank cannot reach it.

    Relays are chosen one by one, the one that saves most first, as in greedy facility location; for all roots at once.

    Args:
        roots: Where all partial sums go.
        first: Cost of each pair in the first round, (num_ranks, num_ranks).
        second: Cost in the second round, which relays have for themselves; None for one round.

    """
    at, num = np.arange(len(roots)), len(first)
    others = np.arange(num) != np.array(roots)[:, None]  # (num_roots, num_ranks), as all that follows
    early = first.T[roots]
    late = np.full_like(early, np.inf) if second is None else second.T[roots]
    cost, relays = np.minimum(early, late), np.zeros_like(others)
    while second is not None:
        leaf = others & ~relays
        now = np.where(np.isfinite(cost), cost, _FAR)
        saved = (np.maximum(now[:, :, None] - first, 0) * leaf[:, :, None]).sum(axis=1) - (late - now)
        saved[~leaf] = -np.inf
        best = saved.argmax(axis=1)
        pays = at[saved[at, best] > _LEAST_SAVED]
        if not len(pays):
            break
        best = best[pays]
        relays[pays, best] = True
        cost[pays] = np.where(others[pays] & ~relays[pays], np.minimum(cost[pays], first.T[best]), cost[pays])
        cost[pays, best] = late[pays, best]
    is_late = relays | (late <= cost) & np.isfinite(late)
    relay = np.where(relays[:, None, :], first, np.inf).argmin(axis=2)
    target = np.where(is_late | (early <= cost), np.array(roots)[:, None], relay)
    costs = np.where(others, cost, 0.0).sum(axis=1)
    trees: list[tuple[float, Tree]] = []
    for k, root in enumerate(roots):
        sources = np.flatnonzero(others[k])
        moved = np.stack([is_late[k, sources], sources, target[k, sources]], axis=1)
        trees.append((float(costs[k]), Tree(root=root, moves=tuple(map(tuple, moved.tolist())))))
    return trees
