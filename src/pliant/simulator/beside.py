"""Parts of one bucket whose messages travel side by side, as `engine.stages.side_by_side` lets them."""

from collections import defaultdict
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

    Their work and their bytes follow one another, while delays pass at the same time, also while bytes of the others
    travel. With b_i the time of part i without its delay d_i, and the longest delay first, all are done after
    max over i of (b_1 + ... + b_i + d_i). What that is longer than all b_i is the delay of the last part.
    """
    found, second = dict(exchanges), float(context.coefficients[_LATENCY])
    of_bucket = defaultdict[int, list[int]](list)
    for k in sorted(k for k in exchanges if isinstance(parts[k].node, AllGather | AllReduce | ScatterGather)):
        of_bucket[parts[k].bucket].append(k)
    for mine in (several for several in of_bucket.values() if len(several) > 1):
        delays_s = {k: float(exchanges[k].of.counts[exchanges[k].index, _LATENCY]) * second for k in mine}
        busy_s = done_s = 0.0
        for k in sorted(mine, key=lambda k: -delays_s[k]):
            busy_s += exchanges[k].seconds - delays_s[k]
            done_s = max(done_s, busy_s + delays_s[k])
        for k in mine:
            found[k] = _with_delay(exchanges[k], (done_s - busy_s) / second if k == mine[-1] else 0.0, second)
    return found


def _with_delay(each: TimedExchange, delay: float, second: float) -> TimedExchange:
    """Return an exchange with another delay, in units of the coefficient, of so many seconds each."""
    counts, before = each.of.counts.copy(), float(each.of.counts[each.index, _LATENCY])
    counts[each.index, _LATENCY] = delay
    of, seconds = replace(each.of, counts=counts), each.seconds + (delay - before) * second
    return replace(each, seconds=seconds, of=of, alternates=True)
