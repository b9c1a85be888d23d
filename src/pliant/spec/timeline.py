"""Timelines: events on ranks, their times, and the bytes that they moved."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Event", "Timeline"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One interval on one rank: computing, communicating or waiting."""

    rank: int
    step: int
    kind: Literal["forward", "backward", "exchange", "communicate", "encode", "decode", "optimize", "wait"]
    name: str
    start_s: float
    """Counted from the start of the timeline's first step."""
    end_s: float
    sent_bytes: int = 0
    received_bytes: int = 0

    def __post_init__(self) -> None:
        if not -math.inf < self.start_s <= self.end_s < math.inf or min(self.rank, self.step) < 0:
            raise ValueError(
                f"event {self.name!r} of rank {self.rank} in step {self.step} lasts from {self.start_s:g} to "
                f"{self.end_s:g} s; ranks and steps are at least 0, and an end is not before its start."
            )
        if min(self.sent_bytes, self.received_bytes) < 0:
            raise ValueError(f"event {self.name!r} has moved less than 0 bytes.")


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Events of a run, in the order in which they ended.

    >>> event = Event(rank=0, step=0, kind="wait", name="bucket 0", start_s=0.01, end_s=0.02)
    >>> Timeline(events=(event,)).events[0].kind
    'wait'
    """

    events: tuple[Event, ...]
    """Time 0 is the start of the first step."""
    plan: str = ""
    """Hash of the plan that was in force; nothing where that is not known."""
    num_ranks: int = 0
    """Ranks that took part, though this may be the timeline of one alone; 0 where that is not known."""
    began_unix_s: float = 0.0
    """Time 0 by the clock of the rank's machine, in Unix seconds; 0 for a simulated timeline."""
    provenance: str = ""
