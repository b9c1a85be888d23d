"""A timeline as a trace that Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev) show."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pliant.spec import Timeline
from pliant.spec.files import write_atomically

__all__ = ["to_trace", "write_trace"]

_TRACKS = MappingProxyType(
    {
        "forward": "compute",
        "backward": "compute",
        "optimize": "compute",
        "wait": "compute",
        "exchange": "exchange",
        "encode": "coding",
        "decode": "coding",
        "communicate": "network",
    }
)
_ORDER = ("compute", "exchange", "coding", "network")


def to_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace: a process for each rank, a track for each of what it computes, exchanges, codes and sends.

    Complete events ('X') of the Trace Event Format, with times in microseconds.
    """
    events: list[dict[str, Any]] = []
    for rank in sorted({event.rank for event in timeline.events}):
        named = {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        events.append(named)
        for track, name in enumerate(_ORDER):
            events.append({"ph": "M", "pid": rank, "tid": track, "name": "thread_name", "args": {"name": name}})
    for event in timeline.events:
        events.append(
            {
                "ph": "X",
                "pid": event.rank,
                "tid": _ORDER.index(_TRACKS[event.kind]),
                "name": event.name if _TRACKS[event.kind] in ("compute", "exchange") else f"{event.kind} {event.name}",
                "cat": event.kind,
                "ts": 1e6 * event.start_s,
                "dur": 1e6 * (event.end_s - event.start_s),
                "args": {
                    "step": event.step,
                    "sent_bytes": event.sent_bytes,
                    "received_bytes": event.received_bytes,
                },
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"provenance": timeline.provenance}}


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write a timeline as trace JSON, atomically."""
    write_atomically(Path(path), json.dumps(to_trace(timeline), allow_nan=False))
