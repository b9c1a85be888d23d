"""Plans in force for some steps of a training, each timed."""

import math
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from pliant.comm.base import Comm
from pliant.engine.stats import Stats
from pliant.spec import SyncPlan

__all__ = ["UNCOUNTED", "Compared", "Flown", "Steps", "TryOut", "passed", "period_of"]

R = TypeVar("R")
Steps = Generator[None, None, R]
"""Goes on by one `yield` after each optimizer step."""

UNCOUNTED = 2
"""Steps after a switch that are not timed: buckets are provisional in the first, and connections wake up."""
_LEAST_BLOCKS, _MOST_BLOCKS = 3, 16
_MOST, _PAYS_ABOVE = 0.75, 1.01


class Flown(Protocol):
    """What a pilot needs of a run."""

    plan: SyncPlan
    model: nn.Module
    optimizer: Optimizer

    @property
    def steps(self) -> int:
        """Optimizer steps made."""
        ...

    def stats(self) -> Stats:
        """Return what the run has cost. No communication."""
        ...

    def switch(self, what: SyncPlan, *, pay: bool = True) -> None:
        """Put another plan in force, and pay what the old one owes, or forget it. Collective."""
        ...


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What became of a plan and exact training, turn about."""

    gains: tuple[float, ...]
    """How many times faster the plan was to the same accuracy, turn by turn; 1 for exact training itself."""
    exact_s: float
    """A step of exact training in the last turn; NaN without turns."""
    plan_s: float
    """Likewise of the plan."""

    @property
    def pays(self) -> bool:
        """Whether it was faster in three turns of four, and by more than 1 % at the median."""
        faster = sum(gain > 1 for gain in self.gains)
        return faster >= _MOST * len(self.gains) and statistics.median(self.gains) > _PAYS_ABOVE


class TryOut:
    """Puts plans in force, and times them alike on all ranks: what is slowest counts.

    Args:
        run: Whose plan it is.
        comm: Over a group that nobody else uses.
        enough_s: A plan is timed in blocks of a whole period, as many as begin within so much time, from 3 steps on.

    """

    def __init__(self, run: Flown, comm: Comm, enough_s: float) -> None:
        self._run, self._comm, self._enough_s = run, comm, enough_s

    def tried(self, plan: SyncPlan, limit_s: float) -> Steps[tuple[list[float], str]]:
        """Train under a plan for a while; return its step times, one a block, or why it cannot be in force."""
        try:
            self._run.switch(plan)
        except ValueError as error:  # on all ranks alike, and nothing has changed
            return [], str(error)
        return (yield from self._timed(plan, limit_s)), ""

    def compared(self, plan: SyncPlan, exact: SyncPlan, ratio: float, num_turns: int) -> Steps[Compared]:
        """Hold a plan against exact training, turn about; longer, up to twice as often, while turns disagree."""
        gains: list[float] = []
        last_s = (math.nan, math.nan)
        while plan.hash != exact.hash and len(gains) < 2 * num_turns:
            if len(gains) >= num_turns and (min(gains) > 1 or max(gains) <= 1):
                break
            times_s: list[float] = []
            for each in (exact, plan):
                self._run.switch(each)
                times_s.append(statistics.median((yield from self._timed(each))))
            last_s = (times_s[0], times_s[1])
            gains.append(times_s[0] / (times_s[1] * ratio))
        return Compared(gains=tuple(gains) or (1.0,), exact_s=last_s[0], plan_s=last_s[1])

    def _timed(self, plan: SyncPlan, limit_s: float = math.inf) -> Steps[list[float]]:
        """Return step times, the means of whole periods, the slowest rank's; only one if two are above the limit."""
        period = period_of(plan)
        yield from passed(UNCOUNTED)
        blocks_s = [(yield from self._block(period))]
        if blocks_s[0] > limit_s:
            blocks_s.append((yield from self._block(period)))  # one alone may have had to wait for a core
            if min(blocks_s) > limit_s:
                return [min(blocks_s)]
        wanted = self._enough_s / (blocks_s[0] * period)
        num_blocks = max(2, math.ceil(_LEAST_BLOCKS / period), min(_MOST_BLOCKS, math.ceil(wanted)))
        for _ in range(num_blocks - len(blocks_s)):
            blocks_s.append((yield from self._block(period)))
        return blocks_s

    def _block(self, num_steps: int) -> Steps[float]:
        """Return the mean time of some steps, the slowest rank's."""
        shared = torch.tensor([(yield from passed(num_steps)) / num_steps], dtype=torch.float64)
        self._comm.all_reduce(shared, "max").wait()
        return float(shared)


def passed(num_steps: int) -> Steps[float]:
    """Let some steps be made, and return how long they took this rank."""
    start_s = time.perf_counter()
    for _ in range(num_steps):
        yield
    return time.perf_counter() - start_s


def period_of(plan: SyncPlan) -> int:
    """Return how many steps a plan's exchanges take turns in."""
    return max(rule.choice.every for rule in plan.rules)
