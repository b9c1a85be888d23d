"""Dense sums along many trees at once, in shares that a linear program finds, so that all links of a network work."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pliant.netmodel import Floats, Links, Overheads
from pliant.schedules.priced_trees import Prices, Tree, cheap_trees
from pliant.spec import Move, Schedule, Topology

__all__ = ["pack_trees"]

_LEAST_SHARE = 1 / 512
"""Shares below this are left out: their messages cost more than their bytes save."""
_TOLERANCE = 1e-6
_TURNS, _EAGERNESS = 60, (3.0, 40.0)
"""Turns in which trees are made at prices that follow loads, and how sharply they do in the first and in the last."""
_ROOTS_OF_A_TURN = 1 / 3
"""Part of the roots, the cheapest ones, whose trees carry a turn's share where roots are free."""
_LEAST_GAIN = 0.01
"""Part of its value that a program with more trees must gain for trees to be made again."""
_THRIFT = 0.02
"""Part of the rounds' times that a program may give up, at most, for a lower mean load: it comes to fewer messages."""


class _Ways(NamedTuple):
    """Trees to a root and from it, with what each costs at some prices; infinite where ranks cannot be reached."""

    up_cost: float
    up: Tree
    down_cost: float
    down: Tree

    @property
    def cost(self) -> float:
        return self.up_cost + self.down_cost


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
    interface or uplink. Trees are its columns. Most are made before it is solved, in turns, at prices that grow
    exponentially with the loads of those before (multiplicative weights: Plotkin, Shmoys and Tardos 1995). Some are
    made when its own prices ask for them, while that gains a hundredth (Gilmore and Gomory 1961). A ring uses
    n links of n (n - 1), as fast as the slowest; trees use all, each as much as it can carry. So this is for pairs that
    differ (packing of trees: Blink, Wang et al., MLSys 2020).

    Args:
        topology: Network with the rates; two ranks at least.
        overheads: Overheads beside them.
        hops: Most rounds to a root, and from it: 1 or 2 each.
        max_delay_s: Longest delay of a link that is used.
        limit_s: Time after which no more trees are made; a longer one than needed changes nothing.
        owned: Share of the vector whose sum each rank must have, 1 together; None where roots are free.

    Returns:
        The schedule; None if ranks cannot reach each other over links with so little delay, or if all shares are too
        small.

    """
    links = Links(topology, overheads)
    prices = Prices(links, max_delay_s)
    master = _Master(prices, hops, None if owned is None else np.array(owned))
    end_s = time.monotonic() + limit_s
    if not master.spread(end_s):
        return None
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


class _Master:
    """Linear program over the trees that there are. Variables are the rounds' times, then one share for each tree."""

    def __init__(self, prices: Prices, hops: tuple[int, int], owned: Floats | None) -> None:
        self._prices, self._hops, self._owned = prices, hops, owned
        self._roots = list(range(prices.num_ranks)) if owned is None else np.flatnonzero(owned).tolist()
        self._ups: dict[Tree, Floats] = {}
        self._downs: dict[Tree, Floats] = {}
        """Tree -> its load on each resource in each round, (sum(hops) * num_resources,), in units of `_unit`."""
        self._shares: dict[Tree, float] = {}
        self._value = math.inf
        self._unit = float(prices.table.max(initial=0.0)) or 1.0
        """Seconds per byte of the slowest resource, so that programs have numbers near 1."""

    def spread(self, end_s: float) -> bool:
        """Make trees at prices that follow the loads of those before; return whether a root, or each owner, is reached.

        In each turn the best trees at these prices carry a share, as in Frank and Wolfe's method on a soft maximum.
        """
        num_rounds, (first, last) = sum(self._hops), _EAGERNESS
        loads = np.zeros((num_rounds, len(self._prices.table)))
        has_relays = max(self._hops) > 1  # without, a root has one tree, and a turn makes them all
        most = math.ceil(len(self._roots) * (_ROOTS_OF_A_TURN if has_relays else 1))
        for turn in range(_TURNS if has_relays else 1):
            busiest = loads.max(axis=1, keepdims=True)
            eager = first * (last / first) ** (turn / _TURNS)
            weights = np.exp(eager * (loads / np.where(busiest > 0, busiest, 1.0) - 1))
            ways = [each for each in self._trees_at(weights / weights.sum(axis=1, keepdims=True)) if each.cost < np.inf]
            if len(ways) < (1 if self._owned is None else len(self._roots)):
                return False
            if self._owned is None:
                ways = sorted(ways, key=lambda each: each.cost)[:most]
                shares = np.full(len(ways), 1 / len(ways))
            else:
                shares = self._owned[self._roots]
            both = [
                self._keep(self._ups, each.up, 0) + self._keep(self._downs, each.down, self._hops[0]) for each in ways
            ]
            loads += ((shares @ np.array(both)).reshape(num_rounds, -1) - loads) * 2 / (turn + 2)
            if time.monotonic() > end_s:
                break
        return True

    def improve(self) -> bool:
        """Solve the program; make the trees that its prices ask for if it has become better, and say if any is new."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix, csr_matrix, hstack

        num_rounds, num_resources = sum(self._hops), len(self._prices.table)
        loads = csr_matrix(np.array([*self._ups.values(), *self._downs.values()]).T)
        rows = np.arange(num_rounds * num_resources)
        times = coo_matrix((-np.ones(len(rows)), (rows, rows // num_resources)), (len(rows), num_rounds))
        equal, given = self._shares_of_roots()
        solved = linprog(
            np.concatenate([np.ones(num_rounds), _THRIFT / num_resources * np.asarray(loads.sum(axis=0)).ravel()]),
            A_ub=hstack([times, loads]),
            b_ub=np.zeros(len(rows)),
            A_eq=np.hstack([np.zeros((len(equal), num_rounds)), equal]),
            b_eq=given,
            method="highs-ipm",  # of many columns the simplex method was seen to take ten times as long
        )
        if solved.status != 0:
            raise RuntimeError(f"the linear program of trees was not solved: {solved.message}")
        self._shares = dict(zip((*self._ups, *self._downs), solved.x[num_rounds:].tolist(), strict=True))
        before, self._value = self._value, solved.fun
        duals = _THRIFT / num_resources - solved.ineqlin.marginals.reshape(num_rounds, -1)
        return self._value < (1 - _LEAST_GAIN) * before and self._add(duals, *self._worths(solved.eqlin.marginals))

    def _shares_of_roots(self) -> tuple[Floats, Floats]:
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

    def _worths(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return what a tree to each root, and from it, may cost, by the prices of those sums."""
        num = self._prices.num_ranks
        if self._owned is None:
            return prices[:num] + prices[num], -prices[:num]
        return prices[:num], prices[num:]

    def _add(self, duals: Floats, worth_up: Floats, worth_down: Floats) -> bool:
        """Add the trees that cost less than they are worth, (num_ranks,) each; return whether any is new."""
        before = len(self._ups) + len(self._downs)
        for each in self._trees_at(duals):
            root = each.up.root
            if each.up_cost < worth_up[root] - _TOLERANCE:
                self._keep(self._ups, each.up, 0)
            if each.down_cost < worth_down[root] - _TOLERANCE:
                self._keep(self._downs, each.down, self._hops[0])
        return len(self._ups) + len(self._downs) > before

    def _trees_at(self, prices: Floats) -> Iterator[_Ways]:
        """Yield for each root cheap trees at prices of the resources in each round, (num_rounds, num_resources)."""
        hops = self._hops
        costs = [self._prices.of(each) / self._unit for each in prices]
        backwards = [cost.T for cost in costs[hops[0] :][::-1]]  # a way from a root is one to it, run backwards
        ups = cheap_trees(self._roots, costs[0], costs[1] if hops[0] == 2 else None)
        downs = cheap_trees(self._roots, backwards[0], backwards[1] if hops[1] == 2 else None)
        for (up_cost, up), (down_cost, back) in zip(ups, downs, strict=True):
            moves = tuple((hops[1] - 1 - at, target, source) for at, source, target in back.moves)
            yield _Ways(up_cost, up, down_cost, Tree(root=up.root, moves=moves))

    def _keep(self, trees: dict[Tree, Floats], tree: Tree, first_round: int) -> Floats:
        if tree not in trees:
            pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for at, source, target in tree.moves:
                pairs[first_round + at].append((source, target))
            load = np.concatenate([self._prices.load(pairs[k]) for k in range(sum(self._hops))])
            trees[tree] = load / self._unit
        return trees[tree]

    def blocks(self) -> Iterator[tuple[float, Tree, Tree]]:
        """Yield shares of the vector with the trees to and from their roots; of an owner one at least."""
        for root in self._roots:
            found = list(self._blocks_of(root))
            large = [each for each in found if each[0] >= _LEAST_SHARE]
            yield from large or ([] if self._owned is None else [max(found, key=lambda each: each[0])])

    def _blocks_of(self, root: int) -> Iterator[tuple[float, Tree, Tree]]:
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
