"""Halves of a schedule of dense sums: partial sums on their way to owners of parts, and what owners send back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

from pliant.schedules.collective import Collective, MergedCollective
from pliant.schedules.dense import dense_merged
from pliant.schedules.verify import ScheduleError, verify
from pliant.spec import Move, Schedule

__all__ = ["Half", "OwnerSchedule", "half_of", "place_half", "roots_of"]

Half = Literal["reduce", "copy"]
"""Kind of the moves: of partial sums to their roots, or of what is there from the roots to all."""


@dataclass(frozen=True, kw_only=True)
class OwnerSchedule:
    """Half of a schedule, carried out for parts of given sizes: all have a part, its owner needs the sum; or back.

    Each owner's part is cut into the blocks whose root the owner is, in their order and by their shares.
    """

    schedule: Schedule
    """Moves of one kind between ranks."""
    collective: Collective
    """Who has what before, and needs what after; its bytes are elements."""
    owners: tuple[int, ...]
    """Block -> rank; the blocks of an owner follow one another."""

    @property
    def numels(self) -> tuple[int, ...]:
        """Elements of each block."""
        return self.collective.block_bytes

    @property
    def merged(self) -> MergedCollective:
        """Each block by itself."""
        return MergedCollective(collective=self.collective, members=tuple((b,) for b in range(len(self.owners))))

    def starts(self, starts: Sequence[int]) -> tuple[int, ...]:
        """Return where each block begins, if the parts of owners begin there."""
        found = list[int]()
        for b, owner in enumerate(self.owners):
            follows = b > 0 and self.owners[b - 1] == owner
            found.append(found[-1] + self.numels[b - 1] if follows else starts[owner])
        return tuple(found)


@lru_cache(maxsize=1024)
def half_of(schedule: Schedule, kind: Half) -> Schedule:
    """Return the moves of one kind, without rounds that have none."""
    rounds = (tuple(move for move in moves if move.kind == kind) for moves in schedule.rounds)
    return replace(schedule, rounds=tuple(moves for moves in rounds if moves))


@lru_cache(maxsize=1024)
def roots_of(schedule: Schedule) -> tuple[int, ...]:
    """Return the rank on which the sum of each block is formed, of a verified schedule of dense sums."""
    has = [set(range(schedule.num_ranks)) for _ in range(schedule.num_blocks)]
    for moves in schedule.rounds:
        reduced = [move for move in moves if move.kind == "reduce"]
        for move in reduced:
            has[move.block].discard(move.source)
        for move in reduced:
            has[move.block].add(move.target)
    return tuple(next(iter(left)) for left in has)


@lru_cache(maxsize=256)
def place_half(
    schedule: Schedule, kind: Half, numels: tuple[int, ...], hosts: tuple[tuple[int, ...], ...], granularity: int = 1
) -> OwnerSchedule:
    """Return how parts go to their owners by the reductions of a schedule, or back by its copies.

    Hosts stand where the schedule has ranks. On each of them one rank has the part of an owner: the one at the owner's
    place, modulo the host's ranks (`Aggregators`).

    Args:
        schedule: Of dense sums over as many ranks as there are hosts; verified here.
        kind: Which half of it.
        numels: Elements that each rank owns.
        hosts: Ranks of each host; one each where all ranks are alike.
        granularity: Multiple of elements at which blocks of a part begin.

    Raises:
        ScheduleError: The schedule is not right, or forms no sums on a host that owns something.

    """
    verify(schedule, dense_merged(schedule, schedule.num_blocks).collective)
    rooted: dict[int, list[int]] = {}
    for b, root in enumerate(roots_of(schedule)):
        rooted.setdefault(root, []).append(b)
    half = half_of(schedule, kind)
    moves_of: dict[int, list[tuple[int, Move]]] = {}
    for at, moves in enumerate(half.rounds):
        for move in moves:
            moves_of.setdefault(move.block, []).append((at, move))
    rounds: list[list[Move]] = [[] for _ in half.rounds]
    sizes, owners, everywhere = list[int](), list[int](), list[tuple[int, ...]]()
    for home, place, owner in sorted((h, p, r) for h, ranks in enumerate(hosts) for p, r in enumerate(ranks)):
        if not numels[owner]:
            continue
        there = [ranks[place % len(ranks)] for ranks in hosts]  # who has the part on each host
        mine = _blocks_of(schedule, rooted, home, owner)
        for b, numel in zip(mine, _cut(schedule, mine, numels[owner], granularity), strict=True):
            for at, move in moves_of.get(b, ()):
                ends = {"source": there[move.source], "target": there[move.target], "block": len(sizes)}
                rounds[at].append(replace(move, **ends))
            sizes.append(numel)
            owners.append(owner)
            everywhere.append(tuple(sorted(there)))
    alone = tuple((owner,) for owner in owners)
    return OwnerSchedule(
        schedule=Schedule(
            name=schedule.name,
            num_ranks=len(numels),
            num_blocks=len(sizes),
            rounds=tuple(tuple(sorted(moves)) for moves in rounds if moves),
        ),
        collective=Collective(
            num_ranks=len(numels),
            block_bytes=tuple(sizes),
            holders=tuple(everywhere) if kind == "reduce" else alone,
            needers=alone if kind == "reduce" else tuple(everywhere),
        ),
        owners=tuple(owners),
    )


def _blocks_of(schedule: Schedule, rooted: dict[int, list[int]], home: int, owner: int) -> list[int]:
    if home not in rooted:
        raise ScheduleError(
            f"the schedule {schedule.name!r} forms no sums where rank {owner} is, which owns a part; make one for "
            "these owners with `pliant schedule --owned`, or give that rank no part, as by owners=."
        )
    return rooted[home]


def _cut(schedule: Schedule, blocks: Sequence[int], numel: int, granularity: int) -> list[int]:
    """Return how many elements of an owner's part each of its blocks has, as their shares are."""
    shares = [schedule.shares[b] if schedule.shares else 1.0 for b in blocks]
    shares = [share / sum(shares) for share in shares] if sum(shares) else [1 / len(shares)] * len(shares)
    ends = [min(numel, granularity * round(-(-numel // granularity) * part)) for part in accumulate(shares)]
    return [end - start for start, end in pairwise([0, *ends[:-1], numel])]
