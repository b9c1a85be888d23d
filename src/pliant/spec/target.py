"""Targets of a controller: how much communication a step may show, or how many bytes may leave."""

from dataclasses import dataclass
from typing import Literal

from pliant.spec.ranges import Positive, Ratio, check_ranges

__all__ = ["Target"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target for which the share that is sent is set, while training goes on."""

    of: Literal["exposed_s", "exposed_share", "bytes_per_step", "bytes_per_s"]
    """Seconds of a step in which backward is done and the exchange is not; the same over the rest of the step; bytes
    out of the rank that sends most, a step or a second."""
    value: Positive
    floor: Ratio = 1e-4
    """The least ratio."""
    ceiling: Ratio = 0.5
    """The largest ratio."""
    effort: Ratio = 0.05
    """Share of a step that choosing what is sent may take, before what was found out serves longer."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.floor > self.ceiling:
            raise ValueError(f"invalid Target: floor must be at most the ceiling of {self.ceiling}, got {self.floor}.")

    def __str__(self) -> str:
        return f"{self.of} held at {self.value:g}"
