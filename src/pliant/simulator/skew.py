"""Skew of ranks: where links differ, a rank whose messages have come goes on while others still wait for theirs.

The clock of a simulation is that of the slowest rank, for whom all others wait in each round. If one link is slow,
only the rank behind it waits, and what the link carries in one round passes while others compute, or exchange the next
bucket. So each rank has a clock of its own here, and each link carries messages in the order in which they were sent: a
step takes what the busiest link or the longest way around takes, and not the sum of all rounds.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from pliant.netmodel import Floats
from pliant.simulator.context import SimulationContext
from pliant.simulator.hops import Hop, hops_of
from pliant.simulator.prepared import PreparedPlan
from pliant.simulator.timed_exchange import TimedExchange

__all__ = ["step_with_skew_s"]

_MOST_RANKS = 16
"""With more of them, tables of all pairs take longer than they tell."""
_STEPS = 4
"""Steps until skew is the same in each, and steps whose mean is taken, at least."""


def step_with_skew_s(prepared: PreparedPlan) -> float | None:
    """Return the seconds of a step where ranks need not wait for one another's messages; None if all are alike."""
    return _Ranks(prepared).step_s() if _may_differ(prepared.context) and _is_plain(prepared) else None


def _may_differ(context: SimulationContext) -> bool:
    """Return whether each rank has a host, and hosts differ by their links."""
    links, hosts = context.links, context.topology.hosts
    if links.num_hosts != links.num_ranks or not 2 < links.num_ranks <= _MOST_RANKS:
        return False
    if context.topology.racks or context.overheads.nccl:
        return False
    rates = {rate for host in hosts for rate in (host.send_bytes_per_s, host.receive_bytes_per_s)}
    return bool(context.topology.links) or len(rates) > 1 or len({host.delay_s for host in hosts}) > 1


def _is_plain(prepared: PreparedPlan) -> bool:
    """Return whether all exchanges come in each step."""
    if prepared.follow_ups or prepared.share is not None or prepared.served is not None or prepared.meet is not None:
        return False
    if prepared.shards.groups or prepared.shards.scatters or any(every != 1 for _, every, _ in prepared.gradients):
        return False
    timings = [mixed.part.timing for mixed in prepared.weights]
    rests = [rest for mixed in prepared.weights for rest in mixed.follow_ups]
    return not any(rests) and not any(timing.period != 1 or timing.pace == "free" for timing in timings)


class _Ranks:
    """Clocks of all ranks, and of all that carries messages, through steps of a plan.

    Args:
        prepared: The plan.

    """

    def __init__(self, prepared: PreparedPlan) -> None:
        self._prepared, self._context = prepared, prepared.context
        num_ranks = self._context.num_ranks
        self._slow = np.array(self._context.slowdown)
        self._begun, self._sums, self._means = np.zeros((3, num_ranks))
        """When each rank begins its step, and its threads are done with gradients, and with weights."""
        self._links_free, (self._out_free, self._in_free) = np.zeros((num_ranks, num_ranks)), np.zeros((2, num_ranks))
        self._due = deque[tuple[int, Floats]]()
        """Steps after which weights are taken, and when they are there."""

    def step_s(self) -> float:
        """Return the mean time from step to step."""
        turns = max([len(mixed.tasks) for mixed in self._prepared.weights], default=1)
        num_steps = turns * -(-_STEPS // turns)
        for step in range(num_steps):
            self._step(step)
        from_s = float(self._begun.max())
        for step in range(num_steps, 2 * num_steps):
            self._step(step)
        return (float(self._begun.max()) - from_s) / num_steps

    def _step(self, step: int) -> None:
        workload, queue = self._context.workload, self._prepared.gradients
        for ready_s, parts in _side_by_side(queue):
            ready = self._begun + (workload.forward_s + min(ready_s, workload.backward_s)) * self._slow
            self._sums = self._exchanged(np.maximum(self._sums, ready), parts)
        computed = self._begun + (workload.forward_s + workload.backward_s) * self._slow
        self._begun = np.maximum(computed, self._sums) if queue else computed
        self._begun = self._begun + workload.step_s * self._prepared.step_share * self._slow
        self._take(step)
        for mixed in self._prepared.weights:
            self._means = np.maximum(self._means, self._begun)
            self._means = self._exchanged(self._means, [mixed.tasks[step % len(mixed.tasks)]])
            self._due.append((step + mixed.part.timing.delay_steps, self._means))
        self._take(step)

    def _take(self, step: int) -> None:
        """Wait for the weights that are due after a step."""
        while self._due and self._due[0][0] <= step:
            self._begun = np.maximum(self._begun, self._due.popleft()[1])

    def _exchanged(self, at: Floats, parts: Sequence[TimedExchange]) -> Floats:
        """Return when each rank is done with parts of a bucket whose rounds are side by side."""
        left = [iter(hops_of(each, self._context)) for each in parts]
        under_way: list[tuple[Iterator[Hop], Floats, float]] = [(hops, at, 0.0) for hops in left]
        while under_way:
            coming: list[tuple[Iterator[Hop], Floats, float]] = []
            for hops, arrival, after in under_way:
                at = np.maximum(at, arrival) + after
                if (hop := next(hops, None)) is not None:
                    at = at + hop.before
                    coming.append((hops, self._arrival(at, hop), hop.after))
            under_way = coming
        return at

    def _arrival(self, sent: Floats, hop: Hop) -> Floats:
        """Return when each rank has all messages of a round, (num_ranks,), which ranks send at these moments."""
        if hop.whole:
            return np.full(len(sent), sent.max() + hop.whole)
        leaves = sent[:, None] if hop.back is None else np.maximum(sent[:, None], sent + hop.back)
        self._links_free = np.maximum(self._links_free, np.isfinite(hop.delays) * leaves) + hop.links
        self._out_free = np.maximum(self._out_free, (hop.out > 0) * sent) + hop.out
        arrival = (np.maximum(self._links_free, self._out_free[:, None]) + hop.delays).max(0)
        if hop.into.any():
            arrival = np.maximum(arrival, self._received(sent, hop) + np.maximum(hop.delays.max(0), 0.0))
        return arrival

    def _received(self, sent: Floats, hop: Hop) -> Floats:
        """Return when each host's own interface has let its messages in, one after another as they come."""
        comes = np.isfinite(hop.delays)
        first = np.where(comes, sent[:, None], np.inf).min(0)
        self._in_free = np.where(comes.any(0), np.maximum(self._in_free, first) + hop.into, self._in_free)
        return self._in_free


def _side_by_side(
    queue: Sequence[tuple[float, int, TimedExchange]],
) -> Iterator[tuple[float, list[TimedExchange]]]:
    """Yield when parts of a bucket are ready, whose stages alternate; others one by one."""
    for _, rows in groupby(enumerate(queue), lambda row: row[1][2].label if row[1][2].alternates else row[0]):
        parts = [row for _, row in rows]
        yield parts[0][0], [each for _, _, each in parts]
