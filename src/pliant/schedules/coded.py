"""Means and sums that travel in a codec's payloads, along a schedule."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pliant.codecs import Codec, encode_feedback, finite_flag, keep_unless
from pliant.comm.agreement import require_same
from pliant.comm.base import Comm
from pliant.comm.standing import StandingReceives
from pliant.comm.works import waited_for
from pliant.schedules.coded_rounds import CodedMessage, coded_rounds, room
from pliant.schedules.collective import Collective
from pliant.schedules.rooted import OwnerSchedule
from pliant.schedules.verify import ScheduleError, verify
from pliant.spec import Schedule

__all__ = ["ScheduledCodedAverage", "ScheduledCodedSum"]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A block of the vector, and the place of its payload."""

    block: int
    start: int
    stop: int
    payload: Tensor
    """uint8 (nbytes,)"""

    def of(self, x: Tensor) -> Tensor:
        """Return the block of a vector: a view."""
        return x[self.start : self.stop]


@dataclass(frozen=True, kw_only=True)
class _Message:
    """Payloads to or from a peer; see `CodedMessage`."""

    peer: int
    buffer: Tensor
    added: Sequence[_Part]
    taken: Sequence[_Part]
    copied: Sequence[_Part]


@dataclass(frozen=True, kw_only=True)
class _Round:
    means: Sequence[_Part]
    sends: Sequence[_Message]
    """In ascending order of targets from this rank on, around."""
    receives: Sequence[_Message]
    """In ascending order of sources, which is the order of summation."""


class _CodedMoves:
    """Blocks of a vector that go along a schedule in a codec's payloads, between buffers that are made once.

    Args:
        schedule: Verified here against the collective, and compared with those of the other ranks.
        collective: Holders and needers of each block; its bytes are elements.
        starts: Where each block begins on this rank.
        codec: Any codec.
        comm: Ranks that take part.
        told: What else ranks must have alike.
        device: Device of the buffers.

    Raises:
        ScheduleError: The schedule is not right, or other ranks have another one.

    """

    def __init__(
        self,
        schedule: Schedule,
        collective: Collective,
        starts: Sequence[int],
        codec: Codec,
        comm: Comm,
        *,
        told: str,
        device: torch.device,
    ) -> None:
        verify(schedule, collective)
        cure = "make it from the same data on all ranks, or broadcast it"
        told = f"{schedule} {codec} {collective.block_bytes} {told}"
        require_same(comm, "the schedule, or its codec,", told, device, cure=cure, error=ScheduleError)
        self._codec, self._comm, self._device = codec, comm, device
        self._spans = [(start, start + n) for start, n in zip(starts, collective.block_bytes, strict=True)]
        """First element and end of each block."""
        self._sums: dict[int, Tensor] = {}
        """Block -> payload of its mean, at its root and where it has arrived."""
        self._rounds = self._compile(schedule, collective)
        self._receives = StandingReceives(comm, [[(m.peer, m.buffer) for m in each.receives] for each in self._rounds])

    def _compile(self, schedule: Schedule, collective: Collective) -> tuple[_Round, ...]:
        """Return what this rank encodes, sends and receives in each round, with buffers."""
        me, rounds = self._comm.rank, list[_Round]()
        for each in coded_rounds(schedule, collective.block_bytes, collective.holders):
            means = [self._part(b, self._payload(b)) for rank, b in each.means if rank == me]
            self._sums |= {part.block: part.payload for part in means}
            sends = [self._message(m, m.target) for m in each.messages if m.source == me]
            receives = [self._message(m, m.source) for m in each.messages if m.target == me]
            self._sums |= {part.block: part.payload for m in receives for part in m.copied}
            # From the next rank on around: if all began with the same one, its link would be full, others idle.
            sends.sort(key=lambda message: (message.peer - me) % schedule.num_ranks)
            rounds.append(_Round(means=means, sends=sends, receives=receives))
        return tuple(rounds)

    def _message(self, message: CodedMessage, peer: int) -> _Message:
        sizes = [self._codec.nbytes(self._numel_of(b)) for b in message.blocks]
        ends = list(accumulate(map(room, sizes)))
        buffer = torch.zeros(ends[-1], dtype=torch.uint8, device=self._device)
        parts = {
            b: self._part(b, buffer[end - room(size) :][:size])
            for b, size, end in zip(message.blocks, sizes, ends, strict=True)
        }
        added, taken, copied = ([parts[b] for b in its] for its in (message.added, message.taken, message.copied))
        return _Message(peer=peer, buffer=buffer, added=added, taken=taken, copied=copied)

    def _part(self, block: int, payload: Tensor) -> _Part:
        start, stop = self._spans[block]
        return _Part(block=block, start=start, stop=stop, payload=payload)

    def _payload(self, block: int) -> Tensor:
        return torch.empty(self._codec.nbytes(self._numel_of(block)), dtype=torch.uint8, device=self._device)

    def _numel_of(self, block: int) -> int:
        start, stop = self._spans[block]
        return stop - start


class ScheduledCodedAverage(_CodedMoves):
    """Mean over ranks of float32 vectors, in a codec's payloads, along a schedule of dense sums.

    Each block's moves are a tree. With e what this rank has not delivered of it, and C the codec:

    1. a rank adds up what it has and what its children sent, p = x + sum of their payloads; sends C(p + e) to the next
       rank; e <- p + e - C(p + e);
    2. the root, the last one with a partial sum p, encodes the mean of n ranks, C((p + e) / n); e <- p + e - n C(...);
    3. that payload goes down unchanged to all, who decode it, the root too: results are equal to the bit.

    So n (sum of results) + (sum over ranks of e) = sum of all inputs, as in `CompressedAverage`, whose residuals mean
    the same. Each rank encodes each block once. What is added up on the way is coded again, so that errors without a
    residual grow with the depth of the trees. Blocks begin at multiples of the codec's granularity, payloads at
    multiples of 16 bytes; one message per peer and round.

    Args:
        schedule: Of sums that all ranks hold and need; verified here, and compared with those of the other ranks.
        codec: Any codec; biased ones should be used with a residual.
        numel: Elements of each vector.
        comm: Ranks to average over.
        owner_feedback: Whether roots keep the error of the mean as well.
        device: Device of the buffers.

    Raises:
        ScheduleError: The schedule is not right, or for another number of ranks, or other ranks have another one.

    """

    def __init__(
        self, schedule: Schedule, codec: Codec, numel: int, comm: Comm, *, owner_feedback: bool, device: torch.device
    ) -> None:
        if comm.size != schedule.num_ranks:
            raise ScheduleError(
                f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks, but {comm.size} average; make one "
                "for this network with `pliant schedule`."
            )
        starts = schedule.cuts(numel, codec.granularity)
        everybody = (tuple(range(comm.size)),) * schedule.num_blocks
        sizes = tuple(end - first for first, end in pairwise(starts))
        task = Collective(num_ranks=comm.size, block_bytes=sizes, holders=everybody, needers=everybody)
        super().__init__(schedule, task, starts[:-1], codec, comm, told=f"{owner_feedback}", device=device)
        self._numel, self._owner_feedback = numel, owner_feedback
        self._error = torch.empty(max(sizes, default=0), dtype=torch.float32, device=device)

    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None:
        """Replace x, float32 (numel,), by the mean over ranks. With residual, (numel,), errors are fed back.

        The seed is the same on all ranks. If x or the mean is not finite, results are poisoned on every rank that
        decodes them, and the residual keeps its value there.
        """
        for _ in self.stages(x, seed, residual):
            pass

    def stages(self, x: Tensor, seed: int, residual: Tensor | None = None) -> Generator[None]:
        """Do the same in stages, which yield while the messages of a round are under way."""
        if x.numel() != self._numel:
            raise ValueError(f"this average is for vectors of {self._numel} elements, but got {x.numel()}.")
        for number, each in enumerate(self._rounds):
            for part in each.means:
                self._encode_mean(part, x, residual, seed)
            for m in each.sends:
                for part in (*m.added, *m.taken):
                    self._encode(part, x, residual, seed + self._comm.rank + 1)
                for part in m.copied:
                    part.payload.copy_(self._sums[part.block])
            yield from waited_for(self._receives.start([(m.peer, m.buffer) for m in each.sends], number))
            for m in each.receives:
                for part in m.added:
                    self._codec.decode_add(part.payload, part.of(x))
                for part in (*m.taken, *m.copied):
                    self._codec.decode(part.payload, part.of(x))
        self._receives.end()

    def _encode(self, part: _Part, x: Tensor, residual: Tensor | None, seed: int) -> None:
        """Encode a partial sum for the next rank."""
        if residual is None:
            self._codec.encode(part.of(x), part.payload, seed)
        else:
            encode_feedback(self._codec, part.of(x), part.of(residual), part.payload, seed)

    def _encode_mean(self, part: _Part, x: Tensor, residual: Tensor | None, seed: int) -> None:
        """Divide a complete sum, and encode and decode its mean; keep the residual where the mean is not finite."""
        mean = part.of(x).div_(self._comm.size)
        if residual is None:
            self._codec.encode(mean, part.payload, seed)
            self._codec.decode(part.payload, mean)
            return
        owed, error = part.of(residual), self._error[: len(mean)]
        torch.div(owed, self._comm.size, out=error)
        encode_feedback(self._codec, mean, error, part.payload, seed)
        self._codec.decode(part.payload, mean)
        keep_unless(finite_flag(mean), owed, error.mul_(self._comm.size if self._owner_feedback else 0))


class ScheduledCodedSum(_CodedMoves):
    """Sum over ranks of the parts of a float32 vector at their owners, in a codec's payloads, along a schedule.

    A rank adds the decoded payloads of its children to what it has of a block, and encodes the sum once for the next
    rank; the owner adds up, and encodes nothing. No errors are kept: the codec must be unbiased, and then the sum is,
    with as many times the variance as payloads are coded on the way.

    Args:
        half: Parts on their way to owners.
        starts: Where the part of each rank begins in this rank's vector.
        codec: An unbiased codec.
        comm: Ranks that add up.
        device: Device of the buffers.

    Raises:
        ScheduleError: The schedule is not right, or other ranks have another one.

    """

    def __init__(
        self, half: OwnerSchedule, starts: Sequence[int], codec: Codec, comm: Comm, *, device: torch.device
    ) -> None:
        super().__init__(half.schedule, half.collective, half.starts(starts), codec, comm, told="", device=device)

    def __call__(self, x: Tensor, seed: int) -> None:
        """Replace what this rank owns of x by its sum; the rest is left in an undefined state."""
        for _ in self.stages(x, seed):
            pass

    def stages(self, x: Tensor, seed: int) -> Generator[None]:
        """Do the same in stages, which yield while the messages of a round are under way."""
        for number, each in enumerate(self._rounds):
            for m in each.sends:
                for part in (*m.added, *m.taken):
                    self._codec.encode(part.of(x), part.payload, seed + self._comm.rank + 1)
            yield from waited_for(self._receives.start([(m.peer, m.buffer) for m in each.sends], number))
            for m in each.receives:
                for part in m.added:
                    self._codec.decode_add(part.payload, part.of(x))
                for part in m.taken:
                    self._codec.decode(part.payload, part.of(x))
        self._receives.end()
