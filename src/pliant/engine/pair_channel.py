"""Messages between two ranks, in both directions at any time: each has a head, and some have a body."""

import threading
import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.comm.base import Comm, Work
from pliant.engine.messages import wait_for

__all__ = ["IDLE_S", "Head", "PairChannel"]

IDLE_S = 365 * 86400.0
"""Longest wait for a neighbour: one that is stopped may come back; one whose connection breaks ends the wait."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """Head of a message, int64 (5 + size,) on the wire, with how many heads the sender has received."""

    kind: int
    number: int
    """Exchanges with this neighbour before, as the sender counts them."""
    steps: int
    """Steps that the sender has made."""
    meetings: tuple[int, ...]
    """Meetings that each rank has come to, as far as the sender knows."""
    first: int = -1
    """Rank that has failed first, if one has."""


class PairChannel:
    """Messages between this rank and one neighbour. Several threads may send, one hears; all keep their order.

    A message is on its way until the neighbour hears it, since Gloo keeps no copies. So a sender waits for a body only.
    Heads are let go of when the neighbour has said how many it has received.

    Args:
        comm: A comm of these two ranks.
        size: Ranks of the run.

    """

    def __init__(self, comm: Comm, size: int) -> None:
        self._comm, self._far = comm, 1 - comm.rank
        self._one_at_a_time = threading.Lock()  # a body follows its head
        self._sent: deque[Work] = deque()
        self._num_sent = self._num_heard = 0
        self._numbers = torch.zeros(5 + size, dtype=torch.int64)
        self.heard_s = time.monotonic()
        """Time of the last message, on the clock of `time.monotonic`."""

    def send(self, head: Head, body: Tensor | None = None) -> None:
        """Send a head, and a body after it, contiguous in host memory, for which this waits. Raises CommError."""
        with self._one_at_a_time:
            numbers = [head.kind, head.number, head.steps, head.first, self._num_heard, *head.meetings]
            self._num_sent += 1
            self._sent.append(self._post(torch.tensor(numbers, dtype=torch.int64)))
            work = None if body is None else self._post(body)
        if work is not None:
            work.wait()

    def hear(self) -> Head:
        """Wait for the next head. Raises CommError when the connection breaks."""
        self.receive(self._numbers)
        self.heard_s = time.monotonic()
        self._num_heard += 1
        kind, number, steps, first, received, *meetings = self._numbers.tolist()
        with self._one_at_a_time:
            while len(self._sent) > self._num_sent - received:
                self._sent.popleft().wait()
        return Head(kind=kind, number=number, steps=steps, first=first, meetings=tuple(meetings))

    def receive(self, body: Tensor) -> None:
        """Fill a body, contiguous in host memory, whose head was heard."""
        self._comm.exchange([], [(self._far, body)], patience_s=IDLE_S).wait()

    def drain(self) -> None:
        """Wait until the neighbour has received all heads, or is gone."""
        while self._sent:
            wait_for(self._sent.popleft())

    def hang_up(self) -> None:
        """Close the connection. Takes no lock and waits for nobody."""
        self._comm.hang_up()

    def close(self) -> None:
        """Free the comm, once nothing is under way."""
        self._comm.close()

    def _post(self, x: Tensor) -> Work:
        return self._comm.exchange([(self._far, x)], [], patience_s=IDLE_S)
