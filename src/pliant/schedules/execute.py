"""A schedule carried out: one message per peer and round, sums in a fixed order."""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from pliant.comm.agreement import require_same
from pliant.comm.base import Comm, require_contiguous
from pliant.comm.standing import StandingReceives
from pliant.comm.works import waited_for
from pliant.schedules.collective import Collective, MergedCollective
from pliant.schedules.verify import ScheduleError, verify
from pliant.spec import Schedule

__all__ = ["ScheduledAllReduce"]


_FEW_RUNS = 16
"""Up to so many runs of rows are sliced; more of them only if they are long."""
_LONG_RUN = 256
"""Rows in a run from which slicing is cheaper than an index of every row."""
_Runs = Sequence[tuple[int, int]]
"""First row and end of each run of rows."""


class _Rows(Protocol):
    """Rows of x seen as (rows, unit), in an order."""

    def take(self, x: Tensor, buffer: Tensor) -> None:
        """Copy them into a buffer, (num_rows, unit)."""
        ...

    def add(self, x: Tensor, buffer: Tensor) -> None:
        """Add a buffer to them."""
        ...

    def put(self, x: Tensor, buffer: Tensor) -> None:
        """Replace them by a buffer."""
        ...


@dataclass(frozen=True)
class _Sliced:
    """Few or long runs of rows."""

    runs: _Runs

    def take(self, x: Tensor, buffer: Tensor) -> None:
        if self.runs:
            torch.cat([x[a:b] for a, b in self.runs], out=buffer)

    def add(self, x: Tensor, buffer: Tensor) -> None:
        for (a, b), part in zip(self.runs, buffer.split([b - a for a, b in self.runs]), strict=True):
            x[a:b].add_(part)

    def put(self, x: Tensor, buffer: Tensor) -> None:
        for (a, b), part in zip(self.runs, buffer.split([b - a for a, b in self.runs]), strict=True):
            x[a:b].copy_(part)


@dataclass(frozen=True)
class _Indexed:
    """Rows one by one."""

    at: Tensor
    """(num_rows,)"""

    def take(self, x: Tensor, buffer: Tensor) -> None:
        torch.index_select(x, 0, self.at, out=buffer)

    def add(self, x: Tensor, buffer: Tensor) -> None:
        x.index_add_(0, self.at, buffer)

    def put(self, x: Tensor, buffer: Tensor) -> None:
        x.index_copy_(0, self.at, buffer)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """Message from one rank to another in a round: rows to add, then rows to take as they are."""

    peer: int
    added: _Rows
    copied: _Rows
    num_added: int
    buffer: Tensor
    """(num_rows, unit)"""


@dataclass(frozen=True, kw_only=True)
class _Round:
    sends: tuple[_Message, ...]
    """In ascending order of targets from this rank on, around."""
    receives: tuple[_Message, ...]
    """In ascending order of sources, which is the order of summation."""


class ScheduledAllReduce:
    """Sum over ranks of a vector's blocks that follows a schedule.

    When it is made, the schedule is verified, and compared with those of the other ranks (8 bytes each). Phases, per
    round: pack the blocks for each peer in one buffer; post all sends, beginning with the next rank, and receives
    (`StandingReceives`); wait; add the received blocks in ascending order of sources. Lengths follow from the schedule
    on both sides, so none are sent. A sum is formed on one rank and copied: results are equal to the bit on all ranks
    that need them. Bytes: those of the moves, no more. Every rank calls it at the same point of its program, and
    nothing else uses the comm meanwhile.

    Args:
        schedule: Over the super-blocks of `merged`.
        merged: Blocks of each super-block, as `merge_blocks(collective)` gives.
        collective: Holders and needers of each block.
        numels: Elements of each block.
        comm: Ranks that take part; best one of its own, as `new_comm` makes.
        like: A vector of the same dtype and device.
        starts: Where each block begins on this rank; one after another if not given.

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
        starts: Sequence[int] | None = None,
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
        self._unit = math.gcd(*numels, *(starts or ())) or 1
        starts = starts if starts is not None else [0, *accumulate(numels[:-1])]
        spans = [  # of rows, for each block
            (start // self._unit, (start + numel) // self._unit) for start, numel in zip(starts, numels, strict=True)
        ]
        self._rounds = self._compile(
            schedule, merged.collective, [_joined(spans[b] for b in blocks) for blocks in merged.members], like
        )
        self._receives = StandingReceives(comm, [[(m.peer, m.buffer) for m in each.receives] for each in self._rounds])
        empty = [b for b, held in enumerate(collective.holders) if not held and comm.rank in collective.needers[b]]
        self._zero = _joined(spans[b] for b in empty)

    def __call__(self, x: Tensor) -> None:
        """Replace each block of x, (numel,), by its sum over the ranks that hold it, where this rank needs it.

        The content of x in a block that this rank does not hold is ignored; a block that it does not need is left in an
        undefined state.
        """
        for _ in self.stages(x):
            pass

    def stages(self, x: Tensor) -> Generator[None]:
        """Do the same in stages, which yield while the messages of a round are under way."""
        require_contiguous(x)
        if x.numel() != self._numel or x.dtype != self._dtype:
            raise ValueError(
                f"this sum is for vectors of {self._numel} elements of {self._dtype}, but got {x.numel()} of {x.dtype}."
            )
        rows = x.view(-1, self._unit)  # (num_rows, unit)
        for number, each in enumerate(self._rounds):
            for m in each.sends:
                m.added.take(rows, m.buffer[: m.num_added])
                m.copied.take(rows, m.buffer[m.num_added :])
            yield from waited_for(self._receives.start([(m.peer, m.buffer) for m in each.sends], number))
            for m in each.receives:
                m.added.add(rows, m.buffer[: m.num_added])
                m.copied.put(rows, m.buffer[m.num_added :])
        self._receives.end()
        for first, end in self._zero:
            rows[first:end].zero_()

    def _compile(
        self, schedule: Schedule, collective: Collective, runs: Sequence[_Runs], like: Tensor
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
                to_add, to_copy = (_joined(run for b in blocks for run in runs[b]) for blocks in (added, taken))
                num_added, num_copied = (sum(end - first for first, end in each) for each in (to_add, to_copy))
                if not num_added + num_copied:  # blocks without elements: neither side posts anything
                    continue
                message = _Message(
                    peer=target if me == source else source,
                    added=_rows_of(to_add, like.device),
                    copied=_rows_of(to_copy, like.device),
                    num_added=num_added,
                    buffer=torch.empty(num_added + num_copied, self._unit, dtype=like.dtype, device=like.device),
                )
                (sends if me == source else receives).append(message)
            # From the next rank on around: if all began with the same one, its link would be full, others idle.
            sends.sort(key=lambda message: (message.peer - me) % schedule.num_ranks)
            rounds.append(_Round(sends=tuple(sends), receives=tuple(receives)))
        return tuple(rounds)


def _joined(spans: Iterable[tuple[int, int]]) -> _Runs:
    """Return spans of rows as runs: those that follow each other are one, and empty ones are left out."""
    runs: list[tuple[int, int]] = []
    for first, end in spans:
        if first == end:
            continue
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((first, end))
    return runs


def _rows_of(runs: _Runs, device: torch.device) -> _Rows:
    """Return these rows in the form that is cheaper to copy."""
    num_rows = sum(end - first for first, end in runs)
    if len(runs) <= _FEW_RUNS or num_rows >= _LONG_RUN * len(runs):
        return _Sliced(runs)
    return _Indexed(torch.cat([torch.arange(first, end) for first, end in runs]).to(device))


def _order(
    schedule: Schedule, index: int, has: list[set[int]]
) -> Mapping[tuple[int, int], tuple[list[int], list[int]]]:
    """Return the messages of a round as (blocks to add, blocks to copy); `has` is updated for the next round.

    A partial sum that arrives where this rank has none is copied: x holds nothing valid there.
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
        raise ScheduleError(
            "the super-blocks leave out a block that moves, or hold one twice; use merge_blocks(collective)."
        )
