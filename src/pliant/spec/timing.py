"""When an exchange happens, and when its result is used."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Pace", "Timing"]

Pace = Literal["lockstep", "free"]
"""Whether all ranks exchange at the same steps, or whenever the network is free, each at the step it is in."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When an exchange happens, and when its result is used."""

    period: int = 1
    """Steps from one exchange to the next."""
    delay_steps: int = 0
    """How many steps later a result is used, while its exchange runs beside them."""
    pace: Pace = "lockstep"
    until_step: int = 0
    """Steps of the warm-up, in which something else is exchanged."""
    early_rounds: bool = False
    """Whether periods end in the warm-up too, without an exchange, since what weights have done is gathered."""
    fragments: int = 1
    """Parts of the model whose weights are exchanged at different steps of a period."""
    stretch: float = 0.0
    """Weights are exchanged every max(period, (stretch / lr)^2) steps."""
    weighted: bool = False
    """Whether a rank counts by the work that it has done since the last exchange."""
