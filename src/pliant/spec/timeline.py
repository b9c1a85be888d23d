"""What happened, where, when, and how many bytes it moved."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Event", "Timeline"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that took time on one rank."""

    rank: int
    step: int
    kind: Literal["forward", "backward", "exchange", "communicate", "encode", "decode", "optimize", "wait"]
    name: str
    start_s: float
    """Counted from the timeline's origin."""
    end_s: float
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Events of a run, in the order in which they ended."""

    events: tuple[Event, ...]
    provenance: str = ""
