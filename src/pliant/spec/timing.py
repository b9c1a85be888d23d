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
    quorum: int | None = None
    """Ranks whose period must be over before weights are exchanged; below 0 all but so many; None for all ranks, as
    soon as one's is over."""
    grace_s: float = 0.0
    """Seconds for which others are waited for from then on."""

    def quorum_among(self, num_ranks: int) -> int:
        """Return the quorum of so many ranks.

        >>> [Timing(pace="free", quorum=-1).quorum_among(ranks) for ranks in (1, 2, 4)]
        [1, 1, 3]
        """
        if self.quorum is None:
            return num_ranks
        return self.quorum if self.quorum > 0 else max(1, num_ranks + self.quorum)
