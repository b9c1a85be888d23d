"""Comm whose gathers, sums, all-to-alls and broadcasts of short rows take few rounds, for any number of ranks."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm, PeerTensors, ReduceOp, Work, require_contiguous, require_numel
from pliant.comm.standing import StandingReceives
from pliant.comm.works import EndedWork
from pliant.comm.wrapped import WrappedComm
from pliant.layouts.rounds import gathers_in_rounds, rounds_among

__all__ = ["RoundsComm", "comm_for_rows"]


class _Coming:
    """Rows that come to this rank in calls of one kind and size; their receives stand from one call to the next.

    Args:
        comm: Ranks that exchange.
        rows: Room for a row of this rank's own, and then for those that come, in their order, (1 + num_rows, numel).
        rounds: Of each round, the ranks from which rows come, and how many.

    """

    def __init__(self, comm: Comm, rows: Tensor, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.rows, parts = rows, iter(rows[1:].split([count for each in rounds for _, count in each]))
        self.received: list[PeerTensors] = [[(rank, next(parts)) for rank, _ in each] for each in rounds]
        self.last: Work = EndedWork()
        """Gather before, which needs the rows as long as it is under way."""
        self._receives = StandingReceives(comm, self.received)

    def exchange(self, k: int, sends: PeerTensors) -> Work:
        """Send the messages of round k, and receive those to this rank."""
        return self._receives.exchange(sends, k)

    def stand(self) -> None:
        """Let receives stand for the next call. All that has come is read by now."""
        for k in range(len(self.received)):
            self._receives.stand(k)


class _Gather:
    """Gather whose last round is under way; what is left to do is done once somebody waits for it."""

    def __init__(self, work: Work, finish: Callable[[], None]) -> None:
        self._work, self._finish = work, finish

    def wait(self) -> None:
        self._work.wait()
        finish, self._finish = self._finish, lambda: None
        finish()


class RoundsComm(WrappedComm):
    """Carries out all_gather, reduce_scatter, all_to_all and broadcast in few rounds (`layouts.rounds`).

    Each call returns when it has ended, but for gathers, which return when their last round is under way; the next one
    of the same size first ends the one before. A rank keeps rows in the order of ranks around the circle, its own
    first, so that the rows of a message lie one after another. Receives of calls that come again, with rows of the same
    size, stand (`StandingReceives`), but for those of broadcasts, whose roots change. Bytes out and in, in rows:
    size - 1 of a gather or a sum; of an all-to-all those that are forwarded in each round, at 64 ranks 112. A rank adds
    what comes to what it has in the order of the ranks that it comes from: so sums in one round are in the order of
    ranks. In a broadcast the ranks that have it send it on as in a gather.

    Args:
        comm: Ranks that exchange.
        device: Device of the buffers.
        num_rounds: Number of rounds; 0 for as many as take the least time.

    """

    def __init__(self, comm: Comm, device: torch.device, *, num_rounds: int = 0) -> None:
        super().__init__(comm)
        self._rounds, self._buffers, self._device = rounds_among(comm.size, num_rounds), Scratch(device), device
        self._kinds: dict[tuple[str, int, torch.dtype], _Coming] = {}

    @cached_property
    def _moved(self) -> list[list[Tensor]]:
        """Rows of an all-to-all that go with each message of each round."""
        return [[torch.tensor(hop.rows, device=self._device) for hop in hops] for hops in self._rounds]

    @property
    def prefers_collectives(self) -> bool:
        """True, so that halves of a coded average are one all-to-all and one all-gather."""
        return True

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_gather", out, self.size * x.numel())
        coming = self._coming("gather", x, [[(at, count) for at, count, _ in hops] for hops in self._rounds])
        coming.last.wait()
        circle = coming.rows
        circle[0].copy_(x.view(-1))
        work: Work = EndedWork()
        for k, hops in enumerate(self._rounds):
            work.wait()
            work = coming.exchange(k, [(self._at(-at), circle[:count]) for at, count, _ in hops])

        def finish() -> None:
            _turn(circle, self.rank, out.view_as(circle))
            coming.stand()

        coming.last = _Gather(work, finish)
        return coming.last

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        if op != "sum":
            return self._comm.reduce_scatter(out, x, op)
        require_contiguous(out, x)
        require_numel("reduce_scatter", x, self.size * out.numel())
        circle = self._buffers.take("circle", (self.size, out.numel()), x.dtype)
        _turn(x.view_as(circle), -self.rank, circle)
        rounds = self._rounds[::-1]
        coming = self._coming("sum", out, [[(-at, count) for at, count, _ in hops] for hops in rounds])
        for k, hops in enumerate(rounds):
            coming.exchange(k, [(self._at(at), circle[at : at + count]) for at, count, _ in hops]).wait()
            kept = circle[: hops[0].distance]
            total = self._buffers.take("total", tuple(kept.shape), x.dtype).zero_()
            for _, part in sorted([(self.rank, kept), *coming.received[k]], key=lambda each: each[0]):
                total[: len(part)].add_(part)  # the last message may have fewer rows than are kept
            kept.copy_(total)
        out.view(-1).copy_(circle[0])
        coming.stand()
        return EndedWork()

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_to_all", out, x.numel())
        circle = self._buffers.take("circle", (self.size, x.numel() // self.size), x.dtype)
        sent = self._buffers.take("sent", tuple(circle.shape), x.dtype)
        _turn(x.view_as(circle), -self.rank, circle)
        rounds = [[(-hop.distance, len(hop.rows)) for hop in hops] for hops in self._rounds]
        coming = self._coming("all-to-all", circle[0], rounds)
        for k, (hops, moved) in enumerate(zip(self._rounds, self._moved, strict=True)):
            counts = [len(hop.rows) for hop in hops]
            leaving = sent[: sum(counts)].split(counts)
            for rows, part in zip(moved, leaving, strict=True):
                torch.index_select(circle, 0, rows, out=part)
            coming.exchange(k, [(self._at(hop.distance), part) for hop, part in zip(hops, leaving, strict=True)]).wait()
            for rows, (_, part) in zip(moved, coming.received[k], strict=True):
                circle.index_copy_(0, rows, part)
        _turn(circle.flip(0), self._at(1), out.view_as(circle))  # row j has come from the rank j before this one
        coming.stand()
        return EndedWork()

    def broadcast(self, x: Tensor, root: int) -> Work:
        require_contiguous(x)
        place = (self.rank - root) % self.size
        for hops in self._rounds:
            sends = [(self._at(hop.distance), x) for hop in hops if place < hop.num_rows]
            receives = [(self._at(-at), x) for at, num_rows, _ in hops if at <= place < at + num_rows]
            if sends or receives:
                self._comm.exchange(sends, receives).wait()
        return EndedWork()

    def _coming(self, kind: str, row: Tensor, rounds: Sequence[Sequence[tuple[int, int]]]) -> _Coming:
        """Return the rows that come in calls of a kind: like this one, and in each round from so far and so many."""
        key = kind, row.numel(), row.dtype
        if key not in self._kinds:
            num_rows = sum(count for hops in rounds for _, count in hops)
            room = torch.empty(1 + num_rows, row.numel(), dtype=row.dtype, device=self._device)
            sources = [[(self._at(distance), count) for distance, count in hops] for hops in rounds]
            self._kinds[key] = _Coming(self._comm, room, sources)
        return self._kinds[key]

    def _at(self, distance: int) -> int:
        """Return the rank that is so far from this one around the circle."""
        return (self.rank + distance) % self.size


def comm_for_rows(comm: Comm, row_bytes: int, device: torch.device) -> Comm:
    """Return a comm that gathers rows of so many bytes in few rounds where that is better than a ring, else the comm.

    A comm that prefers collectives keeps its own.
    """
    in_rounds = not comm.prefers_collectives and gathers_in_rounds(row_bytes, comm.size)
    return RoundsComm(comm, device) if in_rounds else comm


def _turn(rows: Tensor, places: int, out: Tensor) -> None:
    """Copy each row so many places further around the circle, (size, ...) both; negative places are places back."""
    at = places % len(rows)
    out[at:].copy_(rows[: len(rows) - at])
    out[:at].copy_(rows[len(rows) - at :])
