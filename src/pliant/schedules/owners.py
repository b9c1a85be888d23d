"""Owners of blocks, on which sums are formed: in rotation, greedily, or by an integer program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel import Floats, Links, Overheads, overheads_of
from pliant.schedules.collective import Collective
from pliant.spec import Topology

__all__ = ["Assignment", "greedy_owners", "one_owner", "solve_owners", "spread_owners"]

_POWERS, _FEW = (4, 4, 4, 8, 8, 16, 32), (4, 8, 32)
"""Powers of the norm, pass by pass; and the few for `quick`, with which direct sums on 4 to 16 hosts take 2 % more."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Owners, and what the two phases of a direct exchange with them are predicted to take."""

    owners: tuple[int, ...]
    """Block -> rank."""
    predicted_s: float
    """T1 + T2 of the model of `solve_owners`."""


class _Loads:
    """Load of an owner's choice on every host's link and every rack's uplink: partials to the owner, sums from it.

    With `merged`, ranks of one host first add up their blocks and share those that they receive, and so do hosts of one
    rack, as in a schedule whose first levels are these; so a place's partials of a block count once.
    """

    def __init__(self, collective: Collective, topology: Topology, overheads: Overheads, *, merged: bool) -> None:
        links, factor = Links(topology, overheads), overheads.wire_factor
        shape = (collective.num_blocks, links.num_hosts)
        self.host_of: list[int] = links.host_of.tolist()
        self.inside = np.eye(links.num_hosts)  # (num_hosts, num_links): 1 where a host is behind a link
        if topology.racks:
            self.inside = np.hstack([self.inside, np.eye(len(topology.racks))[links.rack_of]])
        held, needed = np.zeros(shape), np.zeros(shape)  # (num_blocks, num_hosts) messages that hosts send and take
        for counts, ranks_of in ((held, collective.holders), (needed, collective.needers)):
            for b, ranks in enumerate(ranks_of):
                for rank in ranks:
                    counts[b, self.host_of[rank]] += 1
        size = np.array(collective.block_bytes, dtype=np.float64)[:, None]
        self.moving = np.minimum(held.max(1, initial=0), needed.max(1, initial=0)) > 0  # (num_blocks,)
        size[~self.moving] = 0
        out_s, in_s = (
            factor * np.concatenate(sides) for sides in ((links.out_s, links.up_s), (links.in_s, links.down_s))
        )
        self.phases = [
            self._phase(held, size, out_s, in_s, merged=merged),
            self._phase(needed, size, in_s, out_s, merged=merged),
        ]
        """Seconds of each phase, (num_blocks, num_links), on a link that the owner is not behind, and on one that it
        is."""

    def _phase(
        self, counts: Floats, size: Floats, apart_s: Floats, home_s: Floats, *, merged: bool
    ) -> tuple[Floats, Floats]:
        behind = counts @ self.inside  # (num_blocks, num_links) messages of who is behind the link
        if merged:
            behind, counts = np.minimum(behind, 1), np.minimum(counts, 1)
        beyond = counts @ (1 - self.inside)  # those of all others
        if merged:
            beyond[:, counts.shape[1] :] = _elsewhere(behind[:, counts.shape[1] :])
        return behind * size * apart_s, beyond * size * home_s

    def predicted_s(self, owners: Sequence[int]) -> float:
        """Return T1 + T2: each phase's busiest link."""
        mine = self.inside[[self.host_of[owner] for owner in owners]]  # (num_blocks, num_links)
        return sum(
            float(max((other * (1 - mine)).sum(0).max(initial=0), (own * mine).sum(0).max(initial=0)))
            for other, own in self.phases
        )


def one_owner(collective: Collective, rank: int) -> tuple[int, ...]:
    """Return the same owner for all blocks: with `halving`, a tree."""
    return (rank,) * collective.num_blocks


def spread_owners(collective: Collective) -> tuple[int, ...]:
    """Return owners with about equal bytes: the largest block first, to the rank with least; holders first."""
    return _ranks_for(collective, [range(collective.num_ranks)] * collective.num_blocks)


def greedy_owners(
    collective: Collective,
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    merged: bool = False,
    quick: bool = False,
) -> Assignment:
    """Return owners chosen one after another, the largest block first, so that the busiest link is done soonest.

    Minimizes max(in, out) of the first phase + that of the second, given the assignment so far: the objective of
    `solve_owners`. Then each host's blocks are spread over its ranks.

    Args:
        collective: Holders and needers of each block.
        topology: Network with the rates.
        overheads: The wire's factor is used.
        merged: Whether ranks of one host count as one, as in schedules whose first level is the host.
        quick: Whether to take less than half the time, with a slightly worse result.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    loads = _Loads(collective, topology, overheads, merged=merged)
    hosts = _place(collective, loads, [host.num_ranks for host in topology.hosts], _FEW if quick else _POWERS)
    owners = _ranks_for(collective, [topology.ranks_of(host) for host in hosts])
    return Assignment(owners=owners, predicted_s=loads.predicted_s(owners))


def solve_owners(
    collective: Collective,
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    merged: bool = False,
    limit_s: float = 10.0,
) -> Assignment:
    """Return owners by a mixed-integer program, solved by HiGHS within a time limit; never worse than greedy ones.

        min T1 + T2,  x[b, h] in {0, 1},  sum_h x[b, h] = 1
        T1 >= sum_b out_h [b held on h] (1 - x[b, h])        T1 >= sum_b in_h (holders of b elsewhere) x[b, h]
        T2 >= sum_b in_h [b needed on h] (1 - x[b, h])       T2 >= sum_b out_h (needers of b elsewhere) x[b, h]

    with in_h and out_h the time of b's bytes on the link of host h; and the same for the uplink of each rack, of which
    x is the sum over its hosts. The result depends on how fast the solver is:
    let one rank solve it, and broadcast what it finds.
    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    greedy = greedy_owners(collective, topology, overheads, merged=merged)
    loads = _Loads(collective, topology, overheads, merged=merged)
    blocks = np.flatnonzero(loads.moving)
    if greedy.predicted_s == 0 or not len(blocks) or limit_s <= 0:
        return greedy
    hosts = _solve([(other[blocks], own[blocks]) for other, own in loads.phases], loads.inside, limit_s)
    if hosts is None:
        return greedy
    allowed = [topology.ranks_of(loads.host_of[owner]) for owner in greedy.owners]
    for b, host in zip(blocks, hosts, strict=True):
        allowed[int(b)] = topology.ranks_of(int(host))
    owners = _ranks_for(collective, allowed)
    predicted_s = loads.predicted_s(owners)
    return Assignment(owners=owners, predicted_s=predicted_s) if predicted_s < greedy.predicted_s else greedy


def _solve(phases: Sequence[tuple[Floats, Floats]], inside: Floats, limit_s: float) -> NDArray[np.int64] | None:
    """Return the host of each block, (num_blocks,), or None if no solution was found in time.

    Args:
        phases: For each, seconds of every block on every link, (num_blocks, num_links), where the owner is not behind
            it, and where it is.
        inside: 1 where a host is behind a link, (num_hosts, num_links).
        limit_s: Of the solver.

    """
    from scipy import optimize as untyped, sparse  # here, since it takes long to import

    num_blocks, (num_hosts, num_links) = len(phases[0][0]), inside.shape
    optimize: Any = untyped
    scale = max(float(side.sum()) for phase in phases for side in phase) or 1.0
    rows: list[Any] = []
    most: list[float] = []
    for k, (other, own) in enumerate(phases):
        for link in range(num_links):
            for per_block, fixed in ((-other[:, link], other[:, link].sum()), (own[:, link], 0.0)):
                row = np.outer(per_block / scale, inside[:, link])  # (num_blocks, num_hosts)
                rows.append(np.concatenate([row.ravel(), [-1.0 if k == j else 0.0 for j in range(2)]]))
                most.append(-fixed / scale)
    one = sparse.hstack([sparse.kron(sparse.eye(num_blocks), np.ones((1, num_hosts))), np.zeros((num_blocks, 2))])
    num_binaries = num_blocks * num_hosts
    found: Any = optimize.milp(
        np.concatenate([np.zeros(num_binaries), np.ones(2)]),
        integrality=np.concatenate([np.ones(num_binaries), np.zeros(2)]),
        bounds=optimize.Bounds(0, np.concatenate([np.ones(num_binaries), np.full(2, np.inf)])),
        constraints=[
            optimize.LinearConstraint(sparse.csr_array(np.array(rows)), -np.inf, most),
            optimize.LinearConstraint(one, 1, 1),
        ],
        options={"time_limit": limit_s, "mip_rel_gap": 1e-3},
    )
    if found.x is None:
        return None
    return np.argmax(found.x[:num_binaries].reshape(num_blocks, num_hosts), axis=1)


def _elsewhere(counts: Floats) -> Floats:
    return counts.sum(1, keepdims=True) - counts


def _place(collective: Collective, loads: _Loads, num_ranks: Sequence[int], powers: Sequence[int]) -> list[int]:
    """Return the host of each block's owner: placed once, then in each pass taken out and placed again.

    The objective is a p-norm of the links' loads in each phase, which unlike their maximum shows progress when several
    links are equally busy; as p grows it becomes the maximum. The best of all passes by that is kept.
    """
    inside = loads.inside  # (num_hosts, num_links)
    num_hosts, num_links = inside.shape
    hosts = [-1] * collective.num_blocks
    # (phase, apart or home, link): what each block puts on a link that its owner is not behind, or is behind.
    shares = np.stack([np.stack(sides, axis=1) for sides in loads.phases], axis=1)  # (num_blocks, 2, 2, num_links)
    shares /= shares.sum() or 1.0  # so that no power overflows
    there = np.stack([1 - inside, inside], axis=1)  # (num_hosts, 2, num_links): which of the two it is for an owner
    # Which powers count for an owner: of loads with the block where `there` is 1, of those without it where it is 0.
    counted = np.stack([1 - there, there], axis=1).reshape(num_hosts, -1).T  # (4 num_links, num_hosts)
    loaded = np.zeros((2, 2, 2, num_links))  # (phase, without or with the block, apart or home, link)
    done, with_it = loaded[:, 0], loaded[:, 1]
    owned = [0.0] * num_hosts  # bytes of each host's ranks, for ties
    sizes = collective.block_bytes
    largest_first = sorted(range(collective.num_blocks), key=lambda b: (-sizes[b], b))
    found: list[tuple[float, list[int]]] = []
    for power in powers:
        for b in largest_first:
            share, old = shares[b], hosts[b]
            if old >= 0:
                done -= share * there[old]
                owned[old] -= sizes[b]
            np.add(done, share, out=with_it)
            # The sum over phases of the p-norm of the links' loads, for each host as the owner.
            first, second = ((_power(loaded, power).reshape(2, -1) @ counted) ** (1 / power)).tolist()
            norms = [one + other for one, other in zip(first, second, strict=True)]
            least = min(norms) * (1 + 1e-9)  # sums in another order count as equal
            equal = [h for h, norm in enumerate(norms) if norm <= least]
            best = hosts[b] = equal[0] if len(equal) == 1 else min(equal, key=lambda h: owned[h] / num_ranks[h])
            owned[best] += sizes[b]
            done += share * there[best]
        found.append((float(done.max(axis=(1, 2)).sum()), list(hosts)))
    return min(found, key=lambda each: round(each[0] / (found[0][0] or 1.0), 9))[1]


def _power(x: Floats, power: int) -> Floats:
    """Return x to the power of 4, 8, 16, ... by squaring."""
    while power > 1:
        x, power = x * x, power // 2
    return x


def _ranks_for(collective: Collective, allowed: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return an owner among the allowed ranks of each block, so that ranks own about equal bytes."""
    owned = [0] * collective.num_ranks
    owners = [0] * collective.num_blocks
    for b in sorted(range(collective.num_blocks), key=lambda b: (-collective.block_bytes[b], b)):
        holders = set(collective.holders[b])
        owners[b] = min(allowed[b], key=lambda r: (owned[r], r not in holders, r))
        owned[owners[b]] += collective.block_bytes[b]
    return tuple(owners)
