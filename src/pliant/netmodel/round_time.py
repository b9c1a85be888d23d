"""Time of a round of messages, and what it is made of."""

from dataclasses import dataclass

import numpy as np

from pliant.netmodel.messages import Floats
from pliant.netmodel.overheads import Overheads

__all__ = ["RoundTime"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundTime:
    """Seconds that a round of messages takes, and the counts that they come from, (num_buckets,) each."""

    overheads: Overheads
    ranks_per_cpu: float
    """Of the topology: how many times as long messages take as on cores of their own."""
    rate_s: Floats
    """Bytes of the busiest interface over its rate, with the sharing of its flows."""
    loopback_bytes: Floats
    """Bytes between ranks of one host, of the host where they are most."""
    latency_s: Floats
    """From when the busiest interface is done until the last message arrives."""
    start_s: Floats
    """Time that TCP's slow start adds after a pause, see `slow_start`; a later round over the same pairs has none."""
    staging_s: Floats
    """Time in which a rank's messages to and from other hosts go over its bus, where they are staged."""
    num_messages: Floats
    """Messages that the busiest rank sends and receives."""
    busiest: tuple[str, ...]
    """Name of the busiest interface for each bucket: "host0 out", "rack1 up", "host0 -> host2", ..."""

    @property
    def wire_s(self) -> Floats:
        """Time of the busiest interface."""
        return self.rate_s * self.overheads.wire_factor

    @property
    def loopback_s(self) -> Floats:
        """Time of the bytes between ranks of one host."""
        return self.loopback_bytes / self.overheads.loopback_bytes_per_s

    @property
    def message_s(self) -> Floats:
        """Time of the rank that handles the most messages."""
        return self.num_messages * self.overheads.message_s * self.ranks_per_cpu

    @property
    def busy_s(self) -> Floats:
        """Time of interfaces and loopback, which work side by side."""
        return np.maximum(self.wire_s, self.loopback_s)

    @property
    def total_s(self) -> Floats:
        """Time of the round: delay, slow start, copies and messages come on top of what is busy."""
        return self.busy_s + self.latency_s + self.start_s + self.staging_s + self.message_s

    @property
    def bottleneck(self) -> tuple[str, ...]:
        """Name of what takes longest in each bucket: an interface, or "loopback"."""
        slow = self.loopback_s > self.wire_s
        return tuple("loopback" if inside else name for inside, name in zip(slow, self.busiest, strict=True))
