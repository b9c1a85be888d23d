"""Schedules by rule: nested groups that reduce and copy directly or along a chain, from ring to butterfly."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, product
from typing import Literal

from pliant.schedules.collective import Collective
from pliant.spec import Move, Schedule, Topology

__all__ = ["GroupLevel", "NestedGroups", "build_schedule", "halving", "mixed_radix", "shapes"]

_MAX_LEVELS = 3
"""More levels than these pay only as halving, which is there for itself."""


@dataclass(frozen=True, kw_only=True)
class GroupLevel:
    """Grouping of the groups of the level below, or of ranks: runs of neighbours."""

    sizes: tuple[int, ...]
    """Of how many each group is made."""
    ring: bool = False
    """Whether partial sums go along a chain of neighbours, or each directly to where they are added up."""


@dataclass(frozen=True, kw_only=True)
class NestedGroups:
    """Levels from the smallest groups, whose ranks are nearest, to the one that holds everybody."""

    name: str
    levels: tuple[GroupLevel, ...]


def mixed_radix(radices: Sequence[int], ring: Sequence[bool] | None = None) -> NestedGroups:
    """Return the butterfly in which rank r has the digits of r in these radices, the first one least significant.

    One radix: `direct` or `ring`. All 2: recursive halving and doubling (Rabenseifner 2004). Two, the first one the
    ranks of a host: hierarchical. Decreasing ones: Kylix (Zhao and Canny 2014), which pays with sparse data, since the
    more is merged, the denser it is.
    """
    ring = ring if ring is not None else [False] * len(radices)
    levels = tuple(
        GroupLevel(sizes=(k,) * math.prod(radices[level + 1 :]), ring=by_ring)
        for level, (k, by_ring) in enumerate(zip(radices, ring, strict=True))
    )
    if len(levels) == 1:
        return NestedGroups(name="ring" if ring[0] else "direct", levels=levels)
    if len(levels) > 1 and set(radices) == {2}:
        return NestedGroups(name="halving", levels=levels)
    return NestedGroups(name=_name(radices, ring) or "direct", levels=levels)


def halving(num_ranks: int, radix: int = 2) -> NestedGroups:
    """Return groups of `radix` at every level, the last one of a level smaller where it does not come out even.

    With all sums formed on one rank this is a tree; with owners everywhere it is recursive halving and doubling.
    """
    levels: list[GroupLevel] = []
    left = num_ranks
    while left > 1:
        full, rest = divmod(left, radix)
        levels.append(GroupLevel(sizes=(radix,) * full + ((rest,) if rest else ())))
        left = len(levels[-1].sizes)
    return NestedGroups(name="halving" if radix == 2 else f"radix {radix}", levels=tuple(levels))


def shapes(topology: Topology) -> list[NestedGroups]:
    """Return the family for these hosts: every ordered factorization, its levels direct or ring, and what is uneven.

    Hosts with different numbers of ranks are the first level of their own, racks with different numbers of hosts one
    above it or above ranks; what is above is factorized. Neighbours of different racks are in different groups, so this
    is for hosts in the order of their racks. A number of ranks that has no factors has ragged groups of 2 and 4.
    """
    num_ranks = topology.num_ranks
    found = [mixed_radix(radices, ring) for radices in _factorizations(num_ranks) for ring in _rings(radices)]
    hosts = tuple(host.num_ranks for host in topology.hosts)
    racks = tuple(len(list(run)) for _, run in groupby(topology.rack_of()))  # hosts of each
    by_rack = tuple(sum(hosts[end - n : end]) for end, n in zip(accumulate(racks), racks, strict=True))  # ranks of each
    found += _uneven_groups("hosts", [hosts])
    if topology.racks:
        found += _uneven_groups("racks", [by_rack])
        found += _uneven_groups("hosts.racks", [hosts, racks]) if max(hosts) > 1 else ()
    found += [halving(num_ranks, radix) for radix in (2, 4) if num_ranks > radix]
    unique: dict[tuple[GroupLevel, ...], NestedGroups] = {}
    for shape in found:
        unique.setdefault(shape.levels, shape)
    return list(unique.values())


def _uneven_groups(name: str, lowest: Sequence[tuple[int, ...]]) -> Iterator[NestedGroups]:
    """Yield the shapes with these first levels, of which one is uneven, or all would be factorizations."""
    num_groups = len(lowest[-1])
    if num_groups > 1 and any(len(set(sizes)) > 1 for sizes in lowest):
        for radices in _factorizations(num_groups):
            for ring in _rings(radices):
                levels = (*(GroupLevel(sizes=sizes) for sizes in lowest), *mixed_radix(radices, ring).levels)
                yield NestedGroups(name=f"{name}.{_name(radices, ring)}", levels=levels)


def build_schedule(collective: Collective, owners: Sequence[int], shape: NestedGroups) -> Schedule:
    """Return the schedule in which the sum of block b is formed on rank `owners[b]`, by way of these groups.

    Every group has, for every block, one rank that adds up what its members hold: the one whose place in the group is
    the owner's in its own, so that work is spread as owners are. Level by level partial sums go there, and from the
    owner the sum goes back the same way. Direct level: one round. Ring level of k: k - 1 rounds, in which a partial
    goes from neighbour to neighbour, ends where it is added up, and leaves out who has nothing to add. Ranks that hold
    nothing send nothing, and groups that need nothing are sent nothing.

    Raises:
        ValueError: There are not as many owners as blocks, or the shape is for another number of ranks.

    """
    tree = _Tree(shape, collective.num_ranks)
    if len(owners) != collective.num_blocks or not all(0 <= owner < collective.num_ranks for owner in owners):
        raise ValueError(
            f"the owners are {list(owners)}, but each of the {collective.num_blocks} blocks needs one of the "
            f"{collective.num_ranks} ranks."
        )
    rounds: list[list[tuple[int, int, int]]] = [[] for _ in range(2 * tree.num_rounds)]  # source, target, block
    ups: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, int]]] = {}
    downs: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, int]]] = {}  # most blocks have the same needers
    for block, owner in enumerate(owners):
        held, needed = (owner, collective.holders[block]), (owner, collective.needers[block])
        if not (held[1] and needed[1]):
            continue
        if held not in ups:
            ups[held] = list(tree.up(tree.chiefs(owner), set(held[1])))
        if needed not in downs:
            downs[needed] = list(tree.down(tree.chiefs(owner), set(needed[1])))
        for at, source, target in (*ups[held], *downs[needed]):
            rounds[at].append((source, target, block))
    halves: Sequence[tuple[Literal["reduce", "copy"], Sequence[list[tuple[int, int, int]]]]] = (
        ("reduce", rounds[: tree.num_rounds]),
        ("copy", rounds[tree.num_rounds :]),
    )
    return Schedule(
        name=shape.name,
        num_ranks=collective.num_ranks,
        num_blocks=collective.num_blocks,
        rounds=tuple(
            tuple(Move(source=a, target=b, block=block, kind=kind) for a, b, block in sorted(moves))
            for kind, half in halves
            for moves in half
            if moves
        ),
    )


class _Tree:
    """The groups of a shape. Level 0 are the ranks; `children[l][g]` are groups of level l-1."""

    def __init__(self, shape: NestedGroups, num_ranks: int) -> None:
        self.levels = shape.levels
        self.children: list[list[range]] = [[]]
        self.parent: list[list[int]] = []
        below = num_ranks
        for level in shape.levels:
            if sum(level.sizes) != below:
                raise ValueError(
                    f"the shape {shape.name!r} joins {sum(level.sizes)} groups or ranks, but there are {below} of them."
                )
            firsts = [sum(level.sizes[:g]) for g in range(len(level.sizes))]
            self.children.append([range(a, a + k) for a, k in zip(firsts, level.sizes, strict=True)])
            self.parent.append([g for g, k in enumerate(level.sizes) for _ in range(k)])
            below = len(level.sizes)
        if below != 1:
            raise ValueError(f"the shape {shape.name!r} ends in {below} groups, but has to join all in one.")
        self.spans = [max(level.sizes) - 1 if level.ring else 1 for level in shape.levels]
        self.num_rounds = sum(self.spans)
        self._chiefs: dict[int, list[list[int]]] = {}

    def chiefs(self, owner: int) -> list[list[int]]:
        """Return which rank adds up for each group, by level, of blocks with this owner."""
        if owner not in self._chiefs:
            found, mine = [list(range(len(self.parent[0]) if self.parent else 1))], owner
            for level, parents in enumerate(self.parent, start=1):
                groups = self.children[level]
                place = mine - groups[parents[mine]].start
                found.append([found[-1][group[place % len(group)]] for group in groups])
                mine = parents[mine]
            self._chiefs[owner] = found
        return self._chiefs[owner]

    def up(self, chief: list[list[int]], live: set[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (round, source, target) of the partial sums; `live` are the ranks that hold one."""
        start = 0
        for level, span in enumerate(self.spans, start=1):
            for ranks in self._rows(level, chief):
                target, others = ranks[0], [r for r in ranks[1:] if r in live]
                for k, source in enumerate(others):
                    chained = self.levels[level - 1].ring and k + 1 < len(others)
                    at = start + ranks.index(source) - 1 if self.levels[level - 1].ring else start
                    yield at, source, others[k + 1] if chained else target
                live.difference_update(others)
                if others:
                    live.add(target)
            start += span

    def down(self, chief: list[list[int]], needers: set[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (round, source, target) of the copies of the sum."""
        needing = [needers]
        for parents in self.parent:
            needing.append({parents[g] for g in needing[-1]})
        end = 2 * self.num_rounds
        for level, span in enumerate(self.spans, start=1):
            end -= span
            for group, row in zip(self.children[level], self._rows(level, chief), strict=True):
                wanted = [chief[level - 1][g] for g in group if g in needing[level - 1]]
                source = row[0]
                ring = self.levels[level - 1].ring
                for step, target in enumerate(row[1:]):
                    if target in wanted:
                        yield end + (step if ring else 0), source, target
                        source = target if ring else source

    def _rows(self, level: int, chief: list[list[int]]) -> Iterator[list[int]]:
        """Yield the chiefs of each group's members, from the one that adds up around to the one before it."""
        for g, group in enumerate(self.children[level]):
            ranks = [chief[level - 1][member] for member in group]
            at = ranks.index(chief[level][g])
            yield ranks[at:] + ranks[:at]


def _factorizations(number: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorizations into factors of at least 2, the longest no longer than a few levels."""
    if number == 1:
        yield ()
    for first in range(2, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factorizations(number // first) if len(rest) < _MAX_LEVELS)


def _rings(radices: Sequence[int]) -> Iterator[tuple[bool, ...]]:
    """Yield for each level direct or ring; between two there is no difference."""
    yield from product(*((False, True) if k > 2 else (False,) for k in radices))


def _name(radices: Sequence[int], ring: Sequence[bool]) -> str:
    return ".".join(f"{k}{'r' if by_ring else 'd'}" for k, by_ring in zip(radices, ring, strict=True))
