"""Targets of a controller: how much communication a step may show, or how many bytes may leave."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Target"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target for which the share that is sent is set, while training goes on."""

    of: Literal["exposed_s", "exposed_share", "bytes_per_step", "bytes_per_s"]
    """Seconds of a step in which backward is done and the exchange is not; the same over the rest of the step; bytes
    out of the rank that sends most, a step or a second."""
    value: float
    floor: float = 1e-4
    """The least ratio."""
    ceiling: float = 0.5
    """The largest ratio."""
    effort: float = 0.05
    """Share of a step that choosing what is sent may take, before what was found out serves longer."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"a target of {self.value} for {self.of} cannot be held; give a number above 0.")
        if not 0 < self.floor <= self.ceiling <= 1:
            raise ValueError(
                f"a target has floor {self.floor} and ceiling {self.ceiling}, but ratios go from above 0 to 1, the "
                "floor below the ceiling."
            )
        if not 0 < self.effort <= 1:
            raise ValueError(f"an effort of {self.effort} is no share of a step; use one above 0 and at most 1.")

    def __str__(self) -> str:
        return f"{self.of} held at {self.value:g}"
