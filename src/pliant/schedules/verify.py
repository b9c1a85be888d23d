"""The proof that a schedule does what it should, by walking it with sets of contributors in the place of sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pliant.schedules.collective import Collective
from pliant.spec import Move, Schedule

__all__ = ["ScheduleError", "Verified", "verify"]


class ScheduleError(ValueError):
    """A schedule would give a wrong sum or sends what it must not; the message names round and ranks."""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Counts of a verified schedule."""

    num_rounds: int
    num_messages: int
    """At most one per round, source and target."""
    sent_bytes: tuple[int, ...]
    """Bytes that each rank sends."""
    received_bytes: tuple[int, ...]


class _Walk:
    """Places of all partial sums. Each is the set of its contributors, as the bits of an integer.

    Two sets that are merged must be disjoint, so no contribution ever counts twice, and a set is all that is needed
    where contributions could have multiplicities.
    """

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self.whole = [sum(1 << rank for rank in ranks) for ranks in collective.holders]
        self.has = [{rank: 1 << rank for rank in ranks} for ranks in collective.holders]
        self.in_passing: set[tuple[int, int]] = set()
        """Pairs (rank, block) of copies on ranks that do not need them, and must pass them on."""
        self.handed_over: set[tuple[int, int]] = set()
        """(Rank, block) of partial sums that have left."""

    def round(self, index: int, moves: Sequence[Move]) -> None:
        """Carry out one round: all that is sent leaves before anything arrives."""
        handed: set[tuple[int, int]] = set()
        kept: set[tuple[int, int]] = set()
        under_way: list[tuple[Move, int]] = []
        for move in moves:
            place = (move.source, move.block)
            partial = self.has[move.block].get(move.source)
            if partial is None:
                _refuse(index, move, "but the source holds nothing of it")
            if place in handed or (move.kind == "reduce" and place in kept):
                _refuse(index, move, "but the source hands it over in the same round")
            if move.kind == "reduce" and place in self.handed_over:
                _refuse(index, move, "but the source has handed it over before; it should wait for what comes late")
            if move.kind == "copy" and partial != self.whole[move.block]:
                _refuse(index, move, f"but contributions of {_ranks(self.whole[move.block] & ~partial)} are missing")
            (handed if move.kind == "reduce" else kept).add(place)
            under_way.append((move, partial))
        for rank, block in handed:
            del self.has[block][rank]
        self.handed_over |= handed
        self.in_passing -= handed | kept
        for move, partial in under_way:
            there = self.has[move.block].get(move.target, 0)
            if there & partial:
                _refuse(index, move, f"but the target has contributions of {_ranks(there & partial)} already")
            if there and move.kind == "copy":
                _refuse(index, move, "but the target has a partial sum of it, which would be lost")
            self.has[move.block][move.target] = there | partial
            if move.kind == "copy" and move.target not in self.collective.needers[move.block]:
                self.in_passing.add((move.target, move.block))

    def end(self) -> None:
        """Raise unless every needer has the sum, and nothing was sent for nothing."""
        for block, ranks in enumerate(self.collective.needers):
            for rank in ranks:
                missing = self.whole[block] & ~self.has[block].get(rank, 0)
                if missing:
                    raise ScheduleError(
                        f"at the end rank {rank} needs block {block}, but lacks the contributions of {_ranks(missing)}."
                    )
        for rank, block in sorted(self.in_passing):
            raise ScheduleError(f"block {block} is copied to rank {rank}, which neither needs it nor hands it on.")


def verify(schedule: Schedule, collective: Collective) -> Verified:
    """Verify a schedule, or raise. It does not depend on how the schedule was made, and uses no floating point.

    For every round and block: a sender has the block; no rank hands a block over twice; only complete sums are copied;
    no contribution is added twice, or lost. At the end every needer has each holder's contribution once. A schedule
    with a move left out or doubled fails.

    Raises:
        ScheduleError: One of these does not hold; with the first place.

    """
    for name in ("num_ranks", "num_blocks"):
        if getattr(schedule, name) != getattr(collective, name):
            raise ScheduleError(
                f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks and {schedule.num_blocks} blocks, "
                f"but the collective has {collective.num_ranks} and {collective.num_blocks}."
            )
    walk = _Walk(collective)
    sent, received = [0] * collective.num_ranks, [0] * collective.num_ranks
    num_messages = 0
    for index, moves in enumerate(schedule.rounds):
        for move in moves:
            _require_sense(index, move, collective)
            sent[move.source] += collective.block_bytes[move.block]
            received[move.target] += collective.block_bytes[move.block]
        num_messages += len({(move.source, move.target) for move in moves})
        walk.round(index, moves)
    walk.end()
    return Verified(
        num_rounds=len(schedule.rounds),
        num_messages=num_messages,
        sent_bytes=tuple(sent),
        received_bytes=tuple(received),
    )


def _require_sense(index: int, move: Move, collective: Collective) -> None:
    ranks, blocks = collective.num_ranks, collective.num_blocks
    if not (0 <= move.source < ranks and 0 <= move.target < ranks and 0 <= move.block < blocks):
        _refuse(index, move, f"but there are {ranks} ranks and {blocks} blocks")
    if move.source == move.target:
        _refuse(index, move, "but source and target are the same")
    if move.kind not in ("reduce", "copy"):
        _refuse(index, move, "but a move is a 'reduce' or a 'copy'")
    if not collective.needers[move.block]:
        _refuse(index, move, "but nobody needs it")


def _refuse(index: int, move: Move, why: str) -> NoReturn:
    raise ScheduleError(
        f"in round {index}, block {move.block} is to move from rank {move.source} to rank {move.target} "
        f"({move.kind}), {why}."
    )


def _ranks(bits: int) -> str:
    found = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(map(str, found))}"
