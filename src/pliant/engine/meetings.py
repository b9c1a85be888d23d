"""Meetings of all ranks that exchange weights in pairs: between the same two exchanges, whatever steps they are in."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pliant.comm.base import Comm, CommError
from pliant.engine.pair_partner import Partner

__all__ = ["Meetings"]


class Meetings:
    """Meetings to which ranks come when they like, and of which neighbours tell each other.

    Note [meetings]: where all ranks must be between the same two exchanges, as for a checkpoint or the end, each stops
    asking, waits for its own exchange, and tells its neighbours that it has come. They tell theirs, so that all hear of
    all, and go on answering until everybody has come. Then no message with weights is under way anywhere. A rank may
    hear of the last one from a third, before its own thread has ended the exchange with that one, so it waits for its
    threads, too. A neighbour that answers nothing for the timeout ends the meeting; one that only computes for long
    does not, since its threads answer.

    Args:
        comm: Comm of all ranks.
        changed: Condition that guards what is known, and that tells of every change.
        check: Raises what has failed meanwhile; called in the training thread.

    """

    def __init__(self, comm: Comm, changed: threading.Condition, check: Callable[[], None]) -> None:
        self._comm, self._changed, self._check = comm, changed, check
        self.partners: Mapping[int, Partner] = {}
        """Neighbours by rank; set once they are there."""
        self.counts = (0,) * comm.size
        """Meetings that each rank has come to, as far as this one knows."""

    def learn(self, peer: int, counts: Sequence[int]) -> None:
        """Hear what a neighbour knows, and tell the others what is new."""
        with self._changed:
            newer = tuple(max(pair) for pair in zip(self.counts, counts, strict=True))
            is_news, self.counts = newer != self.counts, newer
            self._changed.notify_all()
        if is_news:
            self._tell(but=peer)

    def come(self) -> None:
        """Wait until all ranks have come, in the training thread, which asks for no exchange meanwhile. Collective."""
        me, limit_s = self._comm.rank, self._comm.timeout_s
        pause_s = min(limit_s / 8, 1.0)
        began_s = pinged_s = time.monotonic()
        wanted = self.counts[me] + 1
        while not self._is_over(wanted):
            self._check()
            if self.counts[me] < wanted and self._are_idle():
                with self._changed:
                    self.counts = (*self.counts[:me], wanted, *self.counts[me + 1 :])
                self._tell()
            with self._changed:
                self._changed.wait_for(lambda: self._is_over(wanted) or self._may_tell(wanted), pause_s)
            missing = [p for rank, p in self.partners.items() if self.counts[rank] < wanted or not p.is_idle]
            now_s = time.monotonic()
            for partner in missing:
                if now_s - max(began_s, partner.channel.heard_s) > limit_s:
                    raise self._silent(partner.peer)
            if now_s - pinged_s >= pause_s:
                pinged_s = now_s
                for partner in missing:
                    partner.ping()

    def _are_idle(self) -> bool:
        return all(partner.is_idle for partner in self.partners.values())

    def _is_over(self, wanted: int) -> bool:
        return min(self.counts) >= wanted and self._are_idle()

    def _may_tell(self, wanted: int) -> bool:
        return self.counts[self._comm.rank] < wanted and self._are_idle()

    def _tell(self, but: int = -1) -> None:
        for rank, partner in self.partners.items():
            if rank != but:
                partner.tell()

    def _silent(self, rank: int) -> CommError:
        me, size = self._comm.rank, self._comm.size
        text = (
            f"rank {me} of {size}: rank {rank} has given no sign of life for {self._comm.timeout_s:g}s, and a meeting "
            "of all ranks needs it; if it was stopped, let it go on, or raise timeout_s"
        )
        return CommError(text, rank=me, op="meet", lost=(rank,))
