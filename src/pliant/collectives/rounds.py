"""Comm whose gathers, sums, all-to-alls and broadcasts of short rows take few rounds, for any number of ranks."""

import torch
from torch import Tensor

from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm, EndedWork, ReduceOp, Work, require_contiguous, require_numel
from pliant.comm.wrapped import WrappedComm
from pliant.layouts.rounds import is_short, rounds_among

__all__ = ["RoundsComm", "comm_for_rows"]


class RoundsComm(WrappedComm):
    """Carries out all_gather, reduce_scatter, all_to_all and broadcast in few rounds (`layouts.rounds`).

    Each call returns when it has ended. A rank keeps rows in the order of ranks around the circle, its own first, so
    that the rows of a message lie one after another. Bytes out and in, in rows: size - 1 of a gather or a sum; of an
    all-to-all those that are forwarded in each round, at 64 ranks 112. A rank adds what comes to what it has in the
    order of the ranks that it comes from: so sums in one round are in the order of ranks. In a broadcast the ranks that
    have it send it on as in a gather.

    Args:
        comm: Ranks that exchange.
        device: Device of the buffers.
        num_rounds: Number of rounds; 0 for as many as take the least time.

    """

    def __init__(self, comm: Comm, device: torch.device, *, num_rounds: int = 0) -> None:
        super().__init__(comm)
        self._rounds, self._buffers = rounds_among(comm.size, num_rounds), Scratch(device)
        self._moved = [[torch.tensor(hop.rows, device=device) for hop in hops] for hops in self._rounds]

    @property
    def prefers_collectives(self) -> bool:
        """True, so that halves of a coded average are one all-to-all and one all-gather."""
        return True

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_gather", out, self.size * x.numel())
        circle = self._buffers.take("circle", (self.size, x.numel()), x.dtype)
        circle[0].copy_(x.view(-1))
        for hops in self._rounds:
            sends = [(self._at(-at), circle[:count]) for at, count, _ in hops]
            self._comm.exchange(sends, [(self._at(at), circle[at : at + count]) for at, count, _ in hops]).wait()
        _turn(circle, self.rank, out.view_as(circle))
        return EndedWork()

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        if op != "sum":
            return self._comm.reduce_scatter(out, x, op)
        require_contiguous(out, x)
        require_numel("reduce_scatter", x, self.size * out.numel())
        circle = self._buffers.take("circle", (self.size, out.numel()), x.dtype)
        _turn(x.view_as(circle), -self.rank, circle)
        for hops in reversed(self._rounds):
            kept, counts = circle[: hops[0].distance], [hop.num_rows for hop in hops]
            came = self._buffers.take("came", (sum(counts), out.numel()), x.dtype).split(counts)
            sends = [(self._at(at), circle[at : at + count]) for at, count, _ in hops]
            receives = [(self._at(-hop.distance), part) for hop, part in zip(hops, came, strict=True)]
            self._comm.exchange(sends, receives).wait()
            total = self._buffers.take("total", tuple(kept.shape), x.dtype).zero_()
            for _, part in sorted([(self.rank, kept), *receives], key=lambda each: each[0]):
                total[: len(part)].add_(part)  # the last message may have fewer rows than are kept
            kept.copy_(total)
        out.view(-1).copy_(circle[0])
        return EndedWork()

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_to_all", out, x.numel())
        circle = self._buffers.take("circle", (self.size, x.numel() // self.size), x.dtype)
        sent, came = (self._buffers.take(name, tuple(circle.shape), x.dtype) for name in ("sent", "came"))
        _turn(x.view_as(circle), -self.rank, circle)
        for hops, moved in zip(self._rounds, self._moved, strict=True):
            counts = [len(hop.rows) for hop in hops]
            leaving, coming = (rows[: sum(counts)].split(counts) for rows in (sent, came))
            for rows, part in zip(moved, leaving, strict=True):
                torch.index_select(circle, 0, rows, out=part)
            sends = [(self._at(hop.distance), part) for hop, part in zip(hops, leaving, strict=True)]
            receives = [(self._at(-hop.distance), part) for hop, part in zip(hops, coming, strict=True)]
            self._comm.exchange(sends, receives).wait()
            for rows, part in zip(moved, coming, strict=True):
                circle.index_copy_(0, rows, part)
        _turn(circle.flip(0), self._at(1), out.view_as(circle))  # row j has come from the rank j before this one
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

    def _at(self, distance: int) -> int:
        """Return the rank that is so far from this one around the circle."""
        return (self.rank + distance) % self.size


def comm_for_rows(comm: Comm, row_bytes: int, device: torch.device) -> Comm:
    """Return a comm that gathers or broadcasts rows of so many bytes in few rounds if they are short, else the comm.

    A comm that prefers collectives keeps its own.
    """
    return RoundsComm(comm, device) if is_short(row_bytes) and not comm.prefers_collectives else comm


def _turn(rows: Tensor, places: int, out: Tensor) -> None:
    """Copy each row so many places further around the circle, (size, ...) both; negative places are places back."""
    at = places % len(rows)
    out[at:].copy_(rows[: len(rows) - at])
    out[:at].copy_(rows[len(rows) - at :])
