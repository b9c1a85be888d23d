"""Heartbeats of the ranks of an elastic run: this one's, and what it has seen of the others'."""

import secrets
import threading
from dataclasses import replace

from pliant.comm.records import Epoch, Life
from pliant.comm.signed_records import Records

__all__ = ["Heartbeats"]


class Heartbeats:
    """Gives one rank's heartbeats, and tells which others are lost. No clock in here.

    Args:
        records: Where heartbeats stand.
        rank: This rank's number in the world.
        silent_s: How long without a heartbeat until a rank counts as lost.
        started: A number that grows from one start of a rank to the next, such as the time.

    """

    def __init__(self, records: Records, rank: int, *, silent_s: float, started: int) -> None:
        self._records, self._rank, self._silent_s = records, rank, silent_s
        self._newest: dict[int, Life] = {}
        """Rank -> the newest heartbeat that was seen of it."""
        self._heard: dict[int, tuple[Life, float]] = {}
        """Rank -> its heartbeat, and when that last changed."""
        self.fresh: set[int] = set()
        """Ranks whose heartbeats have changed while this one looked on, so that they are not from before."""
        self.replaced = False
        """Whether a later process has this rank's place."""
        self._one_at_a_time = threading.Lock()
        self.own = Life(rank=rank, life=secrets.token_hex(8), start=started, count=0, gone=False, epoch=-1, id="")
        if (before := self.of(rank)) is not None:
            self.own = replace(self.own, start=max(started, before.start + 1))

    def heartbeat(self, records: Records, now: Epoch) -> None:
        """Give a heartbeat in an epoch, through the connection of the thread that does."""
        with self._one_at_a_time:
            there = records.get(Life, f"rank {self._rank}")
            if there is not None and there.rank == self._rank and there.start > self.own.start:
                self.replaced = True
                return
            self.own = replace(self.own, count=self.own.count + 1, epoch=now.number, id=now.id)
            records.put(f"rank {self._rank}", self.own)
            self._newest[self._rank] = self.own

    def end(self) -> None:
        """Say with the next heartbeat that it is the last."""
        self.own = replace(self.own, gone=True)

    def look_anew(self) -> None:
        """Count silence from here on."""
        self._heard.clear()

    def of(self, rank: int) -> Life | None:
        """Return the newest heartbeat of a rank; where junk or an older one stands, the newest that was seen."""
        found, last = self._records.get(Life, f"rank {rank}"), self._newest.get(rank)
        if found is None or found.life == self.own.life:
            return last
        newer = last is None or (found.start, found.count) >= (last.start, last.count)
        if not self._records.fits(f"rank {rank}", newer and found.rank == rank):
            return last
        self._newest[rank] = found
        return found

    def is_lost(self, life: Life, now_s: float) -> bool:
        """Say whether a rank has left, or has given no heartbeat for long; this one never is."""
        if life.gone or life.rank == self._rank:
            return life.rank != self._rank
        before, since_s = self._heard.get(life.rank, (life, now_s))
        if (before.start, before.count) != (life.start, life.count):
            since_s = now_s
            self.fresh.add(life.rank)
        self._heard[life.rank] = life, since_s
        return now_s - since_s >= self._silent_s
