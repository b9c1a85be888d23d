"""Skew of ranks: where links differ, a rank whose messages have come goes on while others still wait for theirs.

The clock of a simulation is that of the slowest rank, for whom all others wait in each round. If one link is slow,
only the rank behind it waits. What the link carries in one round passes while others compute, or exchange the next
bucket. So each rank has a clock of its own here, and each link carries messages in the order in which they were sent. A
step takes what the busiest link or the longest way around takes, and not the sum of all rounds.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from pliant.netmodel import Floats
from pliant.simulator.context import SimulationContext
from pliant.simulator.prepared import PreparedPlan
from pliant.simulator.timed_exchange import TimedExchange
from pliant.simulator.timed_rounds import TimedRound, timed_rounds

__all__ = ["step_with_skew_s"]

_MOST_RANKS = 16
"""With more of them, tables of all pairs take longer than they tell."""
_MOST_STEPS = 4
"""Steps until skew is the same in each, at most, and steps whose mean is then taken, at least."""
_SAME = 1e-4
"""Relative difference up to which two steps take as long."""


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
    kinds = {(host.send_bytes_per_s, host.receive_bytes_per_s, host.delay_s) for host in hosts}
    return bool(context.topology.links) or len(kinds) > 1


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
        rounds = -(-_MOST_STEPS // turns)
        ends, before = [self._begun], np.zeros(len(self._begun))
        for first in range(0, 2 * rounds * turns, turns):
            for step in range(first, first + turns):
                self._step(step)
            took = self._begun - ends[-1]
            ends.append(self._begun)
            if np.allclose(took, before, rtol=_SAME, atol=0.0) and np.ptp(took) <= _SAME * took.max():
                return float(took.max()) / turns
            before = took
        return float((ends[-1] - ends[rounds]).max()) / (turns * rounds)

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
        left = [iter(timed_rounds(each, self._context)) for each in parts]
        under_way: list[tuple[Iterator[TimedRound], Floats, float]] = [(rounds, at, 0.0) for rounds in left]
        while under_way:
            coming: list[tuple[Iterator[TimedRound], Floats, float]] = []
            for rounds, arrival, after in under_way:
                at = np.maximum(at, arrival) + after
                if (each := next(rounds, None)) is not None:
                    at = at + each.before
                    coming.append((rounds, self._arrival(at, each), each.after))
            under_way = coming
        return at

    def _arrival(self, sent: Floats, each: TimedRound) -> Floats:
        """Return when each rank has all messages of a round, (num_ranks,), which ranks send at these moments."""
        if each.whole:
            return np.full(len(sent), sent.max() + each.whole)
        leaves = sent[:, None] if each.back is None else np.maximum(sent[:, None], sent + each.back)
        begins = np.maximum(self._links_free, each.sent * leaves)
        self._links_free = begins + (each.links if each.turns is None else each.turns)
        self._out_free = np.maximum(self._out_free, (each.out > 0) * sent) + each.out
        arrival = (np.maximum(begins + each.links, self._out_free[:, None]) + each.delays).max(0)
        if each.receives:  # a host's own interface lets its messages in one after another, as they come
            first = np.where(each.sent, sent[:, None], np.inf).min(0)
            comes = np.maximum(self._in_free, first) + each.into
            self._in_free = np.where(np.isfinite(each.latest), comes, self._in_free)
            arrival = np.maximum(arrival, self._in_free + each.latest)
        return arrival


def _side_by_side(
    queue: Sequence[tuple[float, int, TimedExchange]],
) -> Iterator[tuple[float, list[TimedExchange]]]:
    """Yield when parts of a bucket are ready, whose stages alternate; others one by one."""
    for _, rows in groupby(enumerate(queue), lambda row: row[1][2].label if row[1][2].alternates else row[0]):
        parts = [row for _, row in rows]
        yield parts[0][0], [each for _, _, each in parts]
