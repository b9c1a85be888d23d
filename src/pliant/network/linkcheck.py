"""Are the links what was asked for? What the probes found, held against it."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LinkReport", "expected_bytes_per_s", "judge"]

_TOLERANCE = 0.25


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """What one host measured towards the next."""

    source: str
    target: str
    wanted_bytes_per_s: float
    """0 where nothing limits the link."""
    found_bytes_per_s: float
    wanted_round_trip_s: float
    found_round_trip_s: float


def expected_bytes_per_s(send: float, receive: float) -> float:
    """Return the rate of a flow from one host to another; 0 means not limited."""
    limits = [rate for rate in (send, receive) if rate]
    return min(limits, default=0.0)


def judge(reports: Sequence[LinkReport]) -> list[str]:
    """Return a sentence for each link that is not what was asked for."""
    found: list[str] = []
    for r in reports:
        link = f"{r.source} -> {r.target}"
        if r.wanted_bytes_per_s and abs(r.found_bytes_per_s / r.wanted_bytes_per_s - 1) > _TOLERANCE:
            found.append(
                f"{link} carries {r.found_bytes_per_s * 8e-6:.0f} Mbit/s instead of {r.wanted_bytes_per_s * 8e-6:.0f}"
            )
        if r.wanted_round_trip_s and r.found_round_trip_s < 0.75 * r.wanted_round_trip_s:
            found.append(
                f"{link} answers in {r.found_round_trip_s * 1e3:.1f} ms instead of {r.wanted_round_trip_s * 1e3:.1f}"
            )
    return found
