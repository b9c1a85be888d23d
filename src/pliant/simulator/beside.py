"""Parts of one bucket whose messages travel side by side, as `engine.stages.side_by_side` lets them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pliant.netmodel import KEYS
from pliant.simulator.context import SimulationContext
from pliant.simulator.layout import GradientPart
from pliant.simulator.timed_exchange import TimedExchange
from pliant.spec import AllGather, AllReduce, ScatterGather

__all__ = ["side_by_side"]

_LATENCY = KEYS.index("latency_s")


def side_by_side(
    parts: Sequence[GradientPart], exchanges: Mapping[int, TimedExchange], context: SimulationContext
) -> dict[int, TimedExchange]:
    """Return the exchanges of parts without the delays that those of a bucket share, where they come in stages.

    Their work and their bytes follow one another, while delays pass at the same time: of each only what is longer than
    those before counts.
    """
    found, passed_s, second = dict(exchanges), dict[int, float](), float(context.coefficients[_LATENCY])
    for k in sorted(k for k in exchanges if isinstance(parts[k].node, AllGather | AllReduce | ScatterGather)):
        each, before_s = exchanges[k], passed_s.get(parts[k].bucket, 0.0)
        delay_s = float(each.of.counts[each.index, _LATENCY]) * second
        passed_s[parts[k].bucket] = max(delay_s, before_s)
        if shared_s := min(delay_s, before_s):
            counts = each.of.counts.copy()
            counts[each.index, _LATENCY] -= shared_s / second
            found[k] = replace(each, seconds=each.seconds - shared_s, of=replace(each.of, counts=counts))
    return found
