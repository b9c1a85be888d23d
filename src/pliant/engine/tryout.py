"""Plans in force for some steps of a training, each timed."""

import math
import statistics
import time
from collections.abc import Generator, Sequence
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
_LEAST_BLOCKS, _MOST_BLOCKS, _SLOW_BLOCKS = 3, 16, 3
_MOST, _PAYS_ABOVE = 0.75, 1.01
_LEAST_TURNS, _SURELY = 2, 1.1
"""A plan drops out whose best turn took so many times what the worst turn of another did."""


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
    """What became of plans and exact training, turn about."""

    best: int
    """Which of the plans was the fastest to the same accuracy."""
    gains: tuple[float, ...]
    """How many times faster it was than exact training, turn by turn."""
    exact_s: float
    """A step of exact training, median over its turns."""
    plans_s: tuple[float, ...]
    """Likewise of each plan."""

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

    def compared(
        self, plans: Sequence[SyncPlan], ratios: Sequence[float], exact: SyncPlan, num_turns: int
    ) -> Steps[Compared]:
        """Hold plans and exact training against each other, turn about.

        Who is surely slower drops out after the second turn. Turns go on, up to twice as many, while they disagree on
        whether the best is faster than exact training.

        Args:
            plans: At least one; none of them is the exact one.
            ratios: For each, how many times the steps it needs to the same accuracy.
            exact: DDP's own exchange.
            num_turns: At least two.

        """
        arms, factors = (exact, *plans), (1.0, *ratios)
        steps_s: list[list[float]] = [[] for _ in arms]
        left = list(range(len(arms)))
        best, gains = 1, list[float]()
        for turn in range(1, 2 * num_turns + 1):
            for k in left:
                self._run.switch(arms[k])
                steps_s[k].append(statistics.median((yield from self._timed(arms[k]))))
            costs_s = [[step_s * factor for step_s in each] for each, factor in zip(steps_s, factors, strict=True)]
            best = min(range(1, len(arms)), key=lambda k: statistics.median(costs_s[k]))
            gains = [e / b for e, b in zip(costs_s[0], costs_s[best], strict=False)]
            if turn >= _LEAST_TURNS:
                least_s = min(max(costs_s[k]) for k in left)
                left = [k for k in left if min(costs_s[k]) <= _SURELY * least_s]
            if len(left) == 1 or (turn >= num_turns and (min(gains) > 1 or max(gains) <= 1)):
                break
        exact_s, *plans_s = map(statistics.median, steps_s)
        return Compared(best=best - 1, gains=tuple(gains), exact_s=exact_s, plans_s=tuple(plans_s))

    def _timed(self, plan: SyncPlan, limit_s: float = math.inf) -> Steps[list[float]]:
        """Return step times, the means of whole periods, the slowest rank's; only one if three are above the limit.

        Time goes on while ranks share it: what a late exchange does meanwhile is not for nothing.
        """
        period = period_of(plan)
        yield from passed(UNCOUNTED)
        blocks_s: list[float] = []
        num_blocks, last_s = _SLOW_BLOCKS, time.perf_counter()
        while len(blocks_s) < num_blocks:
            yield from passed(period)
            now_s = time.perf_counter()
            shared = torch.tensor([(now_s - last_s) / period], dtype=torch.float64)
            self._comm.all_reduce(shared, "max").wait()
            blocks_s.append(float(shared))
            last_s = now_s
            if min(blocks_s) <= limit_s:  # codecs and connections warm up, and ranks wait for cores
                wanted = self._enough_s / (min(blocks_s) * period)
                num_blocks = max(2, math.ceil(_LEAST_BLOCKS / period), min(_MOST_BLOCKS, math.ceil(wanted)))
        return blocks_s if min(blocks_s) <= limit_s else [min(blocks_s)]


def passed(num_steps: int) -> Steps[None]:
    """Let some steps be made."""
    for _ in range(num_steps):
        yield


def period_of(plan: SyncPlan) -> int:
    """Return how many steps a plan's exchanges take turns in."""
    return max(rule.choice.every for rule in plan.rules)
