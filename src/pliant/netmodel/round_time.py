"""Time of a round of messages, and what it is made of."""

from dataclasses import dataclass

import numpy as np

from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.messages import Floats, Ints

__all__ = ["RoundTime"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundTime:
    """Seconds that a round of messages takes, and the counts that they come from, (num_buckets,) each."""

    links: Interfaces
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
    busiest: Ints
    """Number of the busiest interface, in the order of `Interfaces.names`."""

    @property
    def wire_s(self) -> Floats:
        """Time of the busiest interface."""
        return self.rate_s * self.links.overheads.wire_factor

    @property
    def loopback_s(self) -> Floats:
        """Time of the bytes between ranks of one host."""
        return self.loopback_bytes / self.links.overheads.loopback_bytes_per_s

    @property
    def message_s(self) -> Floats:
        """Time of the rank that handles the most messages."""
        return self.num_messages * self.links.overheads.message_s * self.links.topology.ranks_per_cpu

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
        """Name of what takes longest in each bucket: an interface, such as "host0 out", or "loopback"."""
        slow, names = self.loopback_s > self.wire_s, self.links.names
        return tuple("loopback" if inside else names[at] for inside, at in zip(slow, self.busiest, strict=True))
