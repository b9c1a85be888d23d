"""Calls for a round of all ranks, by any of them: each rank passes a call on around a ring, once."""

import threading

import torch

from pliant.comm.base import Comm, CommError, Work
from pliant.engine.messages import wait_for
from pliant.engine.pair_channel import IDLE_S

__all__ = ["RoundCalls"]

_BYE = -1
"""Number of the last call."""


class RoundCalls:
    """Calls for rounds, numbered from 1. Every rank sends one message for each round, and gets one.

    Args:
        comm: Comm of all ranks, for these calls alone.

    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        self.last = 0
        """Number of the last round that this rank has called, or passed on the call for."""
        self._sent: list[Work] = []
        self._hears = False

    def call(self, number: int) -> None:
        """Call a round, or pass on the call for it; nothing if this rank has done so."""
        with self._lock:
            if self.last < number:
                self.last = number
                self._send(number)

    def hear(self) -> int | None:
        """Wait for the next call, for as long as it takes; None when the rank before has said goodbye."""
        comm, number = self._comm, torch.zeros(1, dtype=torch.int64)
        self._hears = True
        comm.exchange([], [(self._before, number)], patience_s=IDLE_S).wait()
        self._hears = False
        with self._lock:  # all before the last have gone around, and so have arrived
            done, self._sent = self._sent[:-1], self._sent[-1:]
        for work in done:
            work.wait()
        return None if int(number) == _BYE else int(number)

    def say_goodbye(self) -> None:
        """Say that this rank calls nothing any more."""
        with self._lock:
            self._send(_BYE)

    def drain(self) -> None:
        """Wait until the calls of this rank have arrived, or the next rank is gone."""
        for work in self._sent:
            wait_for(work)

    def silence(self, seconds: float) -> CommError:
        """Return an error for a call that has not come around in so many seconds."""
        me, size = self._comm.rank, self._comm.size
        who = f"rank {self._before} has not passed on" if self._hears else "not all ranks have come to"
        text = f"rank {me} of {size}: {who} the call for an average within {seconds:g}s; was a process stopped?"
        return CommError(text, rank=me, op="average", lost=(self._before,) if self._hears else ())

    def hang_up(self) -> None:
        """Close this rank's connections. Takes no lock and waits for nobody."""
        self._comm.hang_up()

    def close(self) -> None:
        """Free the comm, once nothing is under way."""
        self._comm.close()

    @property
    def _before(self) -> int:
        return (self._comm.rank - 1) % self._comm.size

    def _send(self, number: int) -> None:
        message, after = torch.tensor([number], dtype=torch.int64), (self._comm.rank + 1) % self._comm.size
        self._sent.append(self._comm.exchange([(after, message)], [], patience_s=IDLE_S))
