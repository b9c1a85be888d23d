"""Cores that a rank's threads share: what computing and exchanges beside it take from each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CoreSharing"]


@dataclass(frozen=True, kw_only=True)
class CoreSharing:
    """Processor sharing among the threads of one rank, which all get the same part of the rank's cores.

    Every rank does the same, so each has its equal part of its machine's cores. A thread is known by its share: the
    part of its time, by itself, in which it needs a core. Computing has 1; an exchange has less the longer it waits
    for the wire. Shares count time on the cores that a rank has by itself; on less than a core that is longer already.
    """

    cpus: float = math.inf
    """Cores of each rank."""

    def slowdown(self, shares: Sequence[float]) -> float:
        """Return how many times as long all threads take that run beside each other; at least 1.

        Two that need a core at once each get min(1, cpus / 2) of one, where one alone gets min(1, cpus). So the busiest
        is held up while others need a core. What all need together is never more than there is: no core does the work
        of two. With a core for each thread nothing is slower.

        Args:
            shares: Of each thread that runs.

        """
        capacity, needed = max(1.0, self.cpus), sum(shares)
        each = max(1.0, 2 / capacity)
        return max(1.0, 1 + (each - 1) * (needed - max(shares)), needed / capacity)
