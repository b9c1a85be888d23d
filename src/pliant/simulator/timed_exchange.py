"""One exchange with its time by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.netmodel import KEYS, Round
from pliant.simulator.context import SimulationContext
from pliant.simulator.exchange_time import Exchanges

__all__ = ["TimedExchange", "one_exchange", "timed_exchange"]

_WIRE = [KEYS.index("wire_s"), KEYS.index("loopback_bytes")]


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedExchange:
    """One exchange, with its time by itself."""

    label: str
    seconds: float
    of: Exchanges
    index: int
    """Which of the exchanges that were measured together."""
    wire_share: float = 0.0
    """Part of its time in which it fills the wire, where it may meet another exchange there."""
    blocks: bool = False
    """Whether the rank waits for it before it computes on, as for torch's own collectives on the CPU."""

    alternates: bool = False
    """Whether its stages alternate with those of the other parts of its bucket."""

    @property
    def cpu_share(self) -> float:
        """CPU seconds of the exchange over its seconds; more than 1 where messages and coding are side by side."""
        return float(self.of.cpu_s[self.index]) / self.seconds if self.seconds > 0 else 0.0


def timed_exchange(
    label: str, of: Exchanges, index: int, *, context: SimulationContext | None = None, blocks: bool = False
) -> TimedExchange:
    """Return one of several exchanges that were measured together.

    Args:
        label: Its name in timelines.
        of: The exchanges.
        index: Which of them.
        context: Costs by which the time on the wire is known, where it counts.
        blocks: Whether the rank waits for it at once.

    """
    seconds, share = float(of.seconds[index]), 0.0
    if context is not None and seconds > 0:
        share = float(of.counts[index, _WIRE] @ context.coefficients[_WIRE]) / seconds
    return TimedExchange(label=label, seconds=seconds, of=of, index=index, wire_share=share, blocks=blocks)


def one_exchange(label: str, rounds: Sequence[Round], context: SimulationContext) -> TimedExchange | None:
    """Return the exchange of these rounds; None if there are none."""
    return timed_exchange(label, context.measure(rounds, (), 1)[0], 0) if rounds else None
