"""Workload and topology that plans are simulated on, and what has been found out about them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pliant.netmodel import KEYS, Floats, Links, Overheads, Round
from pliant.simulator.core_sharing import CoreSharing
from pliant.simulator.exchange_time import Exchanges, exchange_time
from pliant.spec import Topology, Workload

__all__ = ["SimulationContext"]

_MESSAGES = KEYS.index("messages")
_CPU_KEYS = slice(_MESSAGES, None)
_LOOPBACK = KEYS.index("loopback_bytes")


@dataclass(kw_only=True, eq=False)
class SimulationContext:
    """Data that all plans on one workload and topology share, computed once."""

    workload: Workload
    topology: Topology
    overheads: Overheads
    slowdown: tuple[float, ...]
    """Per rank, how much longer it computes than the workload says."""
    links: Links = field(init=False)
    coefficients: Floats = field(init=False)
    found: dict[Hashable, tuple[Exchanges, ...]] = field(default_factory=dict[Hashable, tuple[Exchanges, ...]])
    buckets: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(
        default_factory=dict[tuple[int, int], tuple[tuple[int, ...], ...]]
    )
    timed_rounds: dict[tuple[int, int], tuple[Any, ...]] = field(default_factory=dict[tuple[int, int], tuple[Any, ...]])
    """Of each bucket of the exchanges in `found`, see `simulator.timed_rounds`."""

    def __post_init__(self) -> None:
        self.links = Links(self.topology, self.overheads)
        self.coefficients = self.overheads.coefficients()
        self.coefficients *= self.work_factors

    @property
    def num_ranks(self) -> int:
        """Ranks of the topology."""
        return self.links.num_ranks

    @property
    def slowest(self) -> float:
        """Largest factor of any rank."""
        return max(self.slowdown)

    @cached_property
    def cores(self) -> CoreSharing:
        """Cores that the threads of the rank with the fewest share."""
        return CoreSharing(cpus=self.topology.cpus_per_rank)

    @cached_property
    def work_factors(self) -> Floats:
        """Factor by which each of `KEYS` takes the slowest rank longer, on its share of a core, (num_keys,)."""
        factors = np.ones(len(KEYS))
        factors[_CPU_KEYS] = self.slowest * self.topology.ranks_per_cpu
        factors[_LOOPBACK] = self.slowest  # a rate of all ranks of a host together
        return factors

    @property
    def _socket_cpu_s(self) -> tuple[float, float]:
        """CPU seconds of the slowest rank for a message and for a byte, on its share of a core."""
        factor, overheads = float(self.work_factors[_MESSAGES]), self.overheads
        return factor * overheads.handling_s, factor * overheads.byte_cpu_s

    def at_given_overheads(self, counts: Floats) -> Floats:
        """Return counts, (num_keys,), so that they need no factor of the slowest rank or of its cores."""
        return counts * self.work_factors

    def measure(
        self, task: Sequence[Round], rest: Sequence[Round], num: int, pause_s: float = 0.0
    ) -> tuple[Exchanges, Exchanges]:
        """Return the times of `num` exchanges: the part that is waited for after a pause, and the part that follows."""
        sockets = self._socket_cpu_s
        return (
            exchange_time(task, self.links, self.coefficients, num, pause_s=pause_s, socket_cpu_s=sockets),
            exchange_time(rest, self.links, self.coefficients, num, own_work=False, socket_cpu_s=sockets),
        )

    def measure_beside(
        self, task: Sequence[Round], rest: Sequence[Round], num: int, pause_s: float
    ) -> tuple[Exchanges, Exchanges]:
        """Return the same where ranks compute beside the exchanges, which make the pause as much shorter."""
        warm = self.measure(task, rest, num)
        left_s = pause_s - float(warm[0].seconds.sum() + warm[1].seconds.sum())
        return self.measure(task, rest, num, left_s) if left_s > 0 else warm
