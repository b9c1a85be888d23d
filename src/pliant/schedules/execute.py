"""A schedule carried out: one message per peer and round, sums in a fixed order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pliant.comm.agreement import require_same
from pliant.comm.base import Comm, require_contiguous
from pliant.schedules.collective import Collective, MergedCollective
from pliant.schedules.verify import ScheduleError, verify
from pliant.spec import Schedule

__all__ = ["ScheduledAllReduce"]


@dataclass(frozen=True, kw_only=True)
class _Message:
    """Message from one rank to another in a round: rows to add, then rows to take as they are."""

    peer: int
    rows: Tensor  # (num_rows,) of x seen as (rows, unit); where to take them from, or where to put them
    num_added: int
    buffer: Tensor  # (num_rows, unit)


@dataclass(frozen=True, kw_only=True)
class _Round:
    sends: tuple[_Message, ...]
    """In ascending order of targets from this rank on, around."""
    receives: tuple[_Message, ...]
    """In ascending order of sources, which is the order of summation."""


class ScheduledAllReduce:
    """The sums over ranks of a vector's blocks, by a schedule.

    When it is made, the schedule is verified, and compared with those of the other ranks (8 bytes each). Phases, per
    round: pack what goes to each peer in one buffer; post all receives, then all sends, beginning with the next rank
    (one `Comm.exchange`); wait; add what came in ascending order of sources. Lengths follow from the schedule on both
    sides, so none are sent. A sum is formed on one rank and copied: results are equal to the bit on all that need them.
    Bytes: those of the moves, no more. Every rank calls it at the same point of its program, and nobody else uses the
    comm meanwhile.

    Args:
        schedule: Over the super-blocks of `grouped`.
        merged: Of which blocks each super-block is made; as `group(collective)` gives.
        collective: Who holds and needs which block.
        numels: Elements of each block, in the order in which they lie in the vector.
        comm: Who adds up; best one of its own, as `new_comm` makes.
        like: The vectors to come, for their dtype and device.

    Raises:
        ScheduleError: The schedule is not right, or not for these blocks, or other ranks have another one.

    """

    def __init__(
        self,
        schedule: Schedule,
        merged: MergedCollective,
        collective: Collective,
        numels: Sequence[int],
        comm: Comm,
        *,
        like: Tensor,
    ) -> None:
        verify(schedule, merged.collective)
        _require_members(merged, collective)
        if comm.size != schedule.num_ranks or len(numels) != collective.num_blocks or sum(numels) != like.numel():
            raise ScheduleError(
                f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks and {collective.num_blocks} blocks, "
                f"but the comm has {comm.size} ranks, and there are {len(numels)} blocks of {sum(numels)} elements for "
                f"a vector of {like.numel()}."
            )
        self._comm, self._numel, self._dtype = comm, like.numel(), like.dtype
        rounds = [[(m.source, m.target, m.block, m.kind) for m in moves] for moves in schedule.rounds]
        told = f"{schedule.name} {rounds} {merged.members} {tuple(numels)} {like.dtype}"
        cure = "make it from the same data on all ranks, or broadcast it"
        require_same(comm, "the schedule, or its blocks,", told, like.device, cure=cure, error=ScheduleError)
        self._unit = math.gcd(*numels) or 1
        me, members, counts = comm.rank, merged.members, np.array(numels, dtype=np.int64) // self._unit
        rows = _rows_of([b for blocks in members for b in blocks], counts)
        lengths = [int(counts[list(blocks)].sum()) for blocks in members]
        self._rounds = self._compile(schedule, merged.collective, rows.split(lengths), like)
        empty = [b for b, held in enumerate(collective.holders) if not held and me in collective.needers[b]]
        self._zero = _rows_of(empty, counts).to(like.device) if empty else None

    def __call__(self, x: Tensor) -> None:
        """Replace each block of x, (numel,), by its sum over the ranks that hold it, where this rank needs it.

        What x has in a block that this rank does not hold is not looked at; one that it does not need is left in an
        undefined state.
        """
        require_contiguous(x)
        if x.numel() != self._numel or x.dtype != self._dtype:
            raise ValueError(
                f"this sum is for vectors of {self._numel} elements of {self._dtype}, but got {x.numel()} of {x.dtype}."
            )
        rows = x.view(-1, self._unit)  # (num_rows, unit)
        for each in self._rounds:
            for message in each.sends:
                torch.index_select(rows, 0, message.rows, out=message.buffer)
            if each.sends or each.receives:
                self._comm.exchange(
                    [(m.peer, m.buffer) for m in each.sends], [(m.peer, m.buffer) for m in each.receives]
                ).wait()
            for m in each.receives:
                rows.index_add_(0, m.rows[: m.num_added], m.buffer[: m.num_added])
                rows.index_copy_(0, m.rows[m.num_added :], m.buffer[m.num_added :])
        if self._zero is not None:
            rows.index_fill_(0, self._zero, 0)

    def _compile(
        self, schedule: Schedule, collective: Collective, rows: Sequence[Tensor], like: Tensor
    ) -> tuple[_Round, ...]:
        """Return what this rank sends and receives in each round, with buffers."""
        me = self._comm.rank
        has = [set(held) for held in collective.holders]  # of each block, who has a partial, or the sum
        rounds: list[_Round] = []
        for index in range(len(schedule.rounds)):
            sends: list[_Message] = []
            receives: list[_Message] = []
            for (source, target), (added, taken) in _order(schedule, index, has).items():
                if me not in (source, target):
                    continue
                parts = [rows[b] for b in (*added, *taken)]
                at = torch.cat(parts).to(like.device)
                if not len(at):  # blocks without elements: neither side posts anything
                    continue
                message = _Message(
                    peer=target if me == source else source,
                    rows=at,
                    num_added=sum(len(rows[b]) for b in added),
                    buffer=torch.empty(len(at), self._unit, dtype=like.dtype, device=like.device),
                )
                (sends if me == source else receives).append(message)
            # From the next rank on around: if all began with the same one, its link would be full, others idle.
            sends.sort(key=lambda message: (message.peer - me) % schedule.num_ranks)
            rounds.append(_Round(sends=tuple(sends), receives=tuple(receives)))
        return tuple(rounds)


def _rows_of(blocks: Sequence[int], counts: NDArray[np.int64]) -> Tensor:
    """Return the rows of these blocks, one block after another, (num_rows,); `counts` are the rows of each block."""
    at = np.array(blocks, dtype=np.int64)
    lengths = counts[at]
    shifts = (np.cumsum(counts) - counts)[at] - (np.cumsum(lengths) - lengths)  # from the place here to the row there
    return torch.from_numpy(np.arange(lengths.sum()) + np.repeat(shifts, lengths))


def _order(
    schedule: Schedule, index: int, has: list[set[int]]
) -> Mapping[tuple[int, int], tuple[list[int], list[int]]]:
    """Return the messages of a round as (blocks to add, blocks to take as they are); `has` goes on to the next round.

    A partial that comes where there is nothing is taken: what lies there in x is of an earlier round, or nobody's.
    """
    for move in schedule.rounds[index]:
        if move.kind == "reduce":
            has[move.block].discard(move.source)
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for (source, target), (reduced, copied) in schedule.messages(index).items():
        added = [b for b in reduced if target in has[b]]
        taken = [b for b in reduced if target not in has[b]]
        found[source, target] = added, [*taken, *copied]
        for b in (*reduced, *copied):
            has[b].add(target)
    return found


def _require_members(merged: MergedCollective, collective: Collective) -> None:
    """Raise unless super-blocks are made of blocks with the same holders and needers, and none is left out."""
    moving = [b for b in range(collective.num_blocks) if collective.holders[b] and collective.needers[b]]
    inner = merged.collective
    for k, blocks in enumerate(merged.members):
        for b in blocks:
            if (collective.holders[b], collective.needers[b]) != (inner.holders[k], inner.needers[k]):
                raise ScheduleError(
                    f"super-block {k} is held by the ranks {inner.holders[k]} and needed by {inner.needers[k]}, but "
                    f"block {b} in it by {collective.holders[b]} and {collective.needers[b]}."
                )
    if sorted(b for blocks in merged.members for b in blocks) != moving:
        raise ScheduleError("the super-blocks leave out a block that moves, or hold one twice; use group(collective).")
