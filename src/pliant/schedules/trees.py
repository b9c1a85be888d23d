"""Dense sums along many trees at once, in shares that a linear program finds, so that all links of a network work."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import Links, Overheads
from pliant.spec import Move, Schedule, Topology

__all__ = ["pack_trees"]

_Floats = NDArray[np.float64]
_Moves = tuple[tuple[int, int, int], ...]
"""(Round, source, target) of each move of a tree."""
_LEAST_SHARE = 1 / 512
"""Shares below this are left out: their messages cost more than their bytes save."""
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """A way for a block's partial sums to its root, or for its sum from there."""

    root: int
    moves: _Moves


def pack_trees(
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    hops: tuple[int, int] = (2, 2),
    max_delay_s: float = np.inf,
    limit_s: float = 10.0,
    owned: Sequence[float] | None = None,
) -> Schedule | None:
    """Return a schedule of dense sums that divides a vector among trees, each of which takes other links.

    Every block has a root: partial sums go there in at most `hops[0]` rounds, the sum comes back in at most `hops[1]`.
    In two rounds a rank sends to the root, or to a relay, which adds up and sends on. How large a share of the vector
    goes along each tree is a linear program: it minimizes the sum of the rounds' times, each that of its busiest link,
    interface or uplink. Trees are columns, and are made when the program's prices ask for them (Gilmore and Gomory
    1961). A ring uses n links of n (n - 1), as fast as the slowest; trees use all, each as much as it can carry. So
    this is for pairs that differ (packing of trees: Blink, Wang et al., MLSys 2020).

    Args:
        topology: Network with the rates; two ranks at least.
        overheads: Overheads beside them.
        hops: Most rounds to a root, and from it: 1 or 2 each.
        max_delay_s: Longest delay of a link that is used.
        limit_s: Time after which no more trees are made.
        owned: Share of the vector whose sum each rank must have, 1 together; None where roots are free.

    Returns:
        The schedule; None if ranks cannot reach each other over links with so little delay, or if all shares are too
        small.

    """
    links = Links(topology, overheads)
    prices = _Prices(links, max_delay_s)
    master = _Master(prices, hops, None if owned is None else np.array(owned))
    if not master.begin():
        return None
    end_s = time.monotonic() + limit_s
    while master.improve() and time.monotonic() < end_s:
        pass
    blocks = list(master.blocks())
    if not blocks:
        return None
    shares = np.array([share for share, _, _ in blocks])
    rounds: list[list[Move]] = [[] for _ in range(sum(hops))]
    for block, (_, up, down) in enumerate(blocks):
        for at, source, target in up.moves:
            rounds[at].append(Move(source=source, target=target, block=block, kind="reduce"))
        for at, source, target in down.moves:
            rounds[hops[0] + at].append(Move(source=source, target=target, block=block, kind="copy"))
    return Schedule(
        name=f"trees {hops[0]}+{hops[1]}",
        num_ranks=topology.num_ranks,
        num_blocks=len(blocks),
        rounds=tuple(tuple(sorted(moves)) for moves in rounds if moves),
        shares=tuple((shares / shares.sum()).tolist()),
    )


class _Prices:
    """Seconds per byte of each pair of ranks on each resource: links, interfaces, uplinks and loopbacks."""

    def __init__(self, links: Links, max_delay_s: float) -> None:
        num, host_of = links.num_ranks, links.host_of
        self.num_ranks = num
        source, target = (ends.ravel() for ends in np.indices((num, num)))
        give, take = host_of[source], host_of[target]
        outside, factor = give != take, links.overheads.wire_factor
        inside_s = links.inside_factor / links.overheads.loopback_bytes_per_s
        rows: list[_Floats] = []
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

    def of(self, duals: _Floats) -> _Floats:
        """Return what each pair costs, (num_ranks, num_ranks), at prices of the resources, (num_resources,)."""
        costs = (duals @ self.table).reshape(self.num_ranks, self.num_ranks)
        return np.where(self.barred, np.inf, costs)

    def load(self, pairs: Sequence[tuple[int, int]]) -> _Floats:
        """Return the seconds per byte of messages along these pairs on each resource, (num_resources,)."""
        return self.table[:, [a * self.num_ranks + b for a, b in pairs]].sum(axis=1)


def _to_root(root: int, first: _Floats, second: _Floats | None) -> tuple[float, _Moves]:
    """Return a cheap tree to a root, and its cost, which is infinite if some rank cannot reach it.

    Args:
        root: Where all partial sums go.
        first: Cost of each pair in the first round, (num_ranks, num_ranks).
        second: Cost in the second round, which relays have for themselves; None for one round.

    """
    others = np.arange(len(first)) != root
    if second is None:
        cost = first[:, root]
        return float(cost[others].sum()), tuple((0, int(v), root) for v in np.flatnonzero(others))
    cost = np.minimum(first[:, root], second[:, root])
    relays = np.zeros(len(first), dtype=bool)
    while True:  # the relay that saves most, as in greedy facility location
        leaf = others & ~relays
        now = np.where(np.isfinite(cost), cost, _FAR)
        saved = np.maximum(now[:, None] - first, 0)[leaf].sum(axis=0) - (second[:, root] - now)
        saved[~leaf] = -np.inf
        best = int(saved.argmax())
        if not saved[best] > 1e-12:
            break
        relays[best] = True
        cost = np.where(others & ~relays, np.minimum(cost, first[:, best]), cost)
        cost[best] = second[best, root]
    moves: list[tuple[int, int, int]] = []
    for v in np.flatnonzero(others).tolist():
        if relays[v] or second[v, root] <= cost[v]:
            moves.append((1, v, root))
        elif first[v, root] <= cost[v]:
            moves.append((0, v, root))
        else:
            moves.append((0, v, int(np.where(relays, first[v], np.inf).argmin())))
    return float(cost[others].sum()), tuple(moves)


_FAR = 1e12
"""Cost of what cannot be reached yet, so that a relay that reaches it saves much."""


class _Master:
    """Linear program over the trees that there are. Variables are the rounds' times, then one share for each tree."""

    def __init__(self, prices: _Prices, hops: tuple[int, int], owned: _Floats | None) -> None:
        self._prices, self._hops, self._owned = prices, hops, owned
        self._roots = range(prices.num_ranks) if owned is None else np.flatnonzero(owned).tolist()
        self._ups: dict[_Tree, _Floats] = {}
        self._downs: dict[_Tree, _Floats] = {}
        """Tree -> its seconds per byte on each resource in each round, (sum(hops) * num_resources,)."""
        self._shares: dict[_Tree, float] = {}

    def begin(self) -> bool:
        """Make a tree to and from each root that can be reached, by rates alone; return whether there is one."""
        worth = np.full(self._prices.num_ranks, _FAR)
        self._add(np.ones(sum(self._hops) * len(self._prices.table)), worth, worth)
        found = {tree.root for tree in self._ups} & {tree.root for tree in self._downs}
        return bool(found) if self._owned is None else len(found) == len(self._roots)

    def improve(self) -> bool:
        """Solve the program, and make the trees that its prices ask for; return whether there are new ones."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix, csr_matrix, hstack

        num_rounds, num_resources = sum(self._hops), len(self._prices.table)
        loads = csr_matrix(np.array([*self._ups.values(), *self._downs.values()]).T)
        rows = np.arange(num_rounds * num_resources)
        times = coo_matrix((-np.ones(len(rows)), (rows, rows // num_resources)), (len(rows), num_rounds))
        unit = 1 / (float(loads.max()) or 1.0)  # 0 if all trees so far keep to links without a limit
        equal, given = self._shares_of_roots()
        solved = linprog(
            np.concatenate([np.ones(num_rounds), np.zeros(len(self._ups) + len(self._downs))]),
            A_ub=hstack([times, unit * loads]),
            b_ub=np.zeros(len(rows)),
            A_eq=np.hstack([np.zeros((len(equal), num_rounds)), equal]),
            b_eq=given,
            method="highs",
        )
        if solved.status != 0:
            raise RuntimeError(f"the linear program of trees was not solved: {solved.message}")
        self._shares = dict(zip((*self._ups, *self._downs), solved.x[num_rounds:].tolist(), strict=True))
        duals = -unit * solved.ineqlin.marginals
        return self._add(duals, *self._worths(solved.eqlin.marginals))

    def _shares_of_roots(self) -> tuple[_Floats, _Floats]:
        """Return what the trees' shares add up to, (num_sums, num_trees), and the sums, (num_sums,).

        As much goes to a root as from it, and all is 1; or, where shares are owned, each root has its own both ways.
        """
        num, num_ups = self._prices.num_ranks, len(self._ups)
        roots = np.array([tree.root for tree in (*self._ups, *self._downs)])
        at_root = (np.arange(num)[:, None] == roots).astype(np.float64)  # (num_ranks, num_trees)
        up = (np.arange(len(roots)) < num_ups).astype(np.float64)
        if self._owned is None:
            return np.vstack([at_root * (2 * up - 1), up]), np.append(np.zeros(num), 1.0)
        return np.vstack([at_root * up, at_root * (1 - up)]), np.tile(self._owned, 2)

    def _worths(self, prices: _Floats) -> tuple[_Floats, _Floats]:
        """Return what a tree to each root, and from it, may cost, by the prices of those sums."""
        num = self._prices.num_ranks
        if self._owned is None:
            return prices[:num] + prices[num], -prices[:num]
        return prices[:num], prices[num:]

    def _add(self, duals: _Floats, worth_up: _Floats, worth_down: _Floats) -> bool:
        """Add the trees that cost less than they are worth, (num_ranks,) each; return whether any is new."""
        hops = self._hops
        costs = [self._prices.of(each) for each in duals.reshape(sum(hops), -1)]
        downs = [cost.T for cost in costs[hops[0] :][::-1]]  # a way from a root, run backwards
        found = False
        for root in self._roots:
            cost, moves = _to_root(root, costs[0], costs[1] if hops[0] == 2 else None)
            if cost < worth_up[root] - _TOLERANCE:
                found |= self._keep(self._ups, _Tree(root=root, moves=moves), 0)
            cost, moves = _to_root(root, downs[0], downs[1] if hops[1] == 2 else None)
            if cost < worth_down[root] - _TOLERANCE:
                back = tuple((hops[1] - 1 - at, target, source) for at, source, target in moves)
                found |= self._keep(self._downs, _Tree(root=root, moves=back), hops[0])
        return found

    def _keep(self, trees: dict[_Tree, _Floats], tree: _Tree, first_round: int) -> bool:
        if tree in trees:
            return False
        pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for at, source, target in tree.moves:
            pairs[first_round + at].append((source, target))
        trees[tree] = np.concatenate([self._prices.load(pairs[k]) for k in range(sum(self._hops))])
        return True

    def blocks(self) -> Iterator[tuple[float, _Tree, _Tree]]:
        """Yield shares of the vector with the trees to and from their roots; of an owner one at least."""
        for root in self._roots:
            found = list(self._blocks_of(root))
            large = [each for each in found if each[0] >= _LEAST_SHARE]
            yield from large or ([] if self._owned is None else [max(found, key=lambda each: each[0])])

    def _blocks_of(self, root: int) -> Iterator[tuple[float, _Tree, _Tree]]:
        """Pair the trees to a root with those from it, by their shares."""
        left, both = self._shares, (self._ups, self._downs)
        ups, downs = ([tree for tree in trees if tree.root == root and tree in left] for trees in both)
        while ups and downs:
            share = min(left[ups[-1]], left[downs[-1]])
            yield share, ups[-1], downs[-1]
            left[ups[-1]] -= share
            left[downs[-1]] -= share
            for trees in (ups, downs):
                if left[trees[-1]] <= 1e-9:
                    trees.pop()
