"""Plans in force for some steps of a training, each timed."""

import itertools
import math
import statistics
import time
from collections.abc import Generator, Sequence
from typing import TypeVar

from pliant.autotune.comparison import Comparison
from pliant.autotune.coordination import has_failed, slowest_s
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.spec import SyncPlan

__all__ = [
    "UNCOUNTED",
    "Steps",
    "TrialRunner",
    "exchange_period",
    "run_steps",
]

R = TypeVar("R")
Steps = Generator[None, None, R]
"""Goes on by one `yield` after each optimizer step."""

UNCOUNTED = 2
"""Steps after a switch that are not timed: buckets are provisional in the first, and connections wake up."""
_LEAST_STEPS, _MOST_BLOCKS = 3, 16
_SURELY_AT_ONCE, _SURELY = 1.5, 1.1
"""Factors by which a plan's best turn must be slower than another's worst so that it drops out: first turn, later."""
_ALIKE = 1.03
"""Factor up to which plans take as long as one another: to tell them apart takes more turns than it would save."""


class TrialRunner:
    """Puts plans in force and times them, the same on all ranks: the slowest rank counts.

    Each trial is a transaction. If a plan raises on any rank, or makes weights NaN or Inf, then the base plan is in
    force again on all ranks, and weights, buffers, optimizer state and residuals are as when the trial began. One more
    step follows under the base plan, so that the caller's own errors are raised there.

    Bytes, beside the plan's: 8 for each block that is timed, shared twice, and 8 at both ends of a trial.

    Args:
        run: The run.
        comm: Over a group that nothing else uses.
        enough_s: A plan is timed in blocks of a whole period, as many as begin within so much time, from 3 steps on.
        base: Plan before and after each trial: DDP's own exchange.
        most_blocks: Most blocks of a trial.

    """

    def __init__(
        self, run: TunableRun, comm: Comm, enough_s: float, base: SyncPlan, most_blocks: int = _MOST_BLOCKS
    ) -> None:
        self._run, self._comm, self._enough_s, self._base = run, comm, enough_s, base
        self._most_blocks = most_blocks

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return self._run.steps

    def num_steps(self, plan: SyncPlan, step_s: float = 0.0) -> int:
        """Return the most steps that timing a plan may take, the one after a failure included.

        Args:
            plan: To be timed.
            step_s: Time of its steps; 0 if it is not known.

        """
        period = exchange_period(plan)
        blocks = self._num_blocks(step_s, period) if step_s else self._most_blocks
        return UNCOUNTED + blocks * period + 1

    def time_plan(
        self, plan: SyncPlan, limit_s: float = math.inf, *, stays: bool = False
    ) -> Steps[tuple[list[float], str]]:
        """Train under a plan for a while; return its step times, one a block, or why it has failed.

        Args:
            plan: To be timed.
            limit_s: Step time above which it is left soon.
            stays: Whether a plan that has not failed remains in force, on trial, until `end` or `adopt`.

        """
        run = self._run
        self._to_base()
        run.put_on_trial(plan)
        blocks_s = [] if self._has_failed() else (yield from self._time_plan(plan, limit_s))
        if stays and blocks_s:
            run.trial.check()
            if not self._has_failed():
                return blocks_s, ""
        if why := self.end():
            yield from run_steps(1)
            return [], why
        return blocks_s, ""

    def end(self) -> str:
        """Go back to the base plan; undo the trial and return why, if it has failed on any rank. Collective."""
        run, trial = self._run, self._run.trial
        if not trial.is_on:
            return ""
        if not self._has_failed():
            with trial.catch_errors():
                run.switch(self._base)
            trial.check()
        if self._has_failed():
            run.undo(self._base)
        why = trial.why
        trial.end()
        return why

    def compare(
        self,
        plans: Sequence[SyncPlan],
        ratios: Sequence[float],
        num_turns: int,
        base_s: float = math.nan,
        most_turns: float = math.inf,
    ) -> Steps[Comparison]:
        """Time plans and the base plan in turns.

        What is surely slower drops out, the base plan too: after the first turn by a half, later by a tenth. A plan
        that fails drops out at once. There are up to twice as many turns, while they disagree on whether the best is
        faster than the base plan; never more than `most_turns`. They end early where those that are left are alike, and
        the base plan is none of them.

        Args:
            plans: At least one; none of them is the base plan.
            ratios: For each, how many times the steps it needs to the same accuracy.
            num_turns: Turns after which the comparison ends, if they agree.
            base_s: Step time of the base plan, if that is known to be too long: it takes no turn then. NaN if not.
            most_turns: At least one.

        """
        factors = (1.0, *ratios)
        steps_s: list[list[float]] = [[] for _ in factors]
        is_known = not math.isnan(base_s)
        left, failed = list(range(is_known, len(factors))), dict[int, str]()
        best, gains = 0, list[float]()
        for turn in range(1, int(min(2 * num_turns, most_turns)) + 1):
            steps_s[0] += [base_s] if is_known else []
            for k in list(left):
                if k == 0:
                    self._to_base()
                    blocks_s = yield from self._time_plan(self._base)
                else:
                    blocks_s, why = yield from self.time_plan(plans[k - 1])
                    if why:
                        failed[k - 1] = why
                        left.remove(k)
                        continue
                steps_s[k].append(statistics.median(blocks_s))
            costs_s = [[step_s * factor for step_s in each] for each, factor in zip(steps_s, factors, strict=True)]
            rivals = [k for k in range(1, len(factors)) if k - 1 not in failed]
            if not rivals:
                gains = []
                break
            best = min(rivals, key=lambda k: statistics.median(costs_s[k]))
            gains = [e / b for e, b in zip(costs_s[0], costs_s[best], strict=False)]
            if not left:  # what had not dropped out has failed
                break
            least_s = min(max(costs_s[k]) for k in left)
            left = [k for k in left if min(costs_s[k]) <= (_SURELY_AT_ONCE if turn == 1 else _SURELY) * least_s]
            left_s = [statistics.median(costs_s[k]) for k in left]
            alike = 0 not in left and max(left_s) <= _ALIKE * min(left_s)
            if len(left) == 1 or alike or (turn >= num_turns and (min(gains) > 1 or max(gains) <= 1)):
                break
        exact_s, *plans_s = (statistics.median(each) if each else math.nan for each in steps_s)
        return Comparison(
            best=max(0, best - 1), gains=tuple(gains), exact_s=exact_s, plans_s=tuple(plans_s), failed=failed
        )

    def _to_base(self) -> None:
        """Put the base plan in force, where it is not. Collective."""
        if self._run.plan.hash != self._base.hash:
            self._run.switch(self._base)

    def _time_plan(self, plan: SyncPlan, limit_s: float = math.inf) -> Steps[list[float]]:
        """Return step times, as means of whole periods; only one if the first are above the limit.

        Empty if a trial has failed on any rank, which reports that in place of its times. Ranks share times after the
        first few periods and at the end: did they after each, they would wait for each other there, and an exchange in
        which no rank waits for all others would take longer than it does. Where ranks are not in step, each is slow at
        another time, so a period ends when the last rank has made as many. Time counts meanwhile, since late exchanges
        go on.
        """
        period = exchange_period(plan)
        left = _least_blocks(period)
        yield from run_steps(UNCOUNTED)
        blocks_s, last_s = list[float](), time.perf_counter()
        while left > 0:
            began_s, mine_s = last_s, list[float]()
            for _ in range(left):
                yield from run_steps(period)
                last_s = time.perf_counter()
                mine_s.append(math.inf if self._run.trial.why else last_s - began_s)
            ends_s = slowest_s(self._comm, mine_s)
            if math.isinf(ends_s[-1]) and self._has_failed():
                return []
            blocks_s += [(b - a) / period for a, b in itertools.pairwise([0.0, *ends_s])]
            if min(blocks_s) > limit_s:
                return [min(blocks_s)]
            left = self._num_blocks(min(blocks_s), period) - len(blocks_s)  # codecs and connections warm up
        return blocks_s

    def _num_blocks(self, step_s: float, period: int) -> int:
        wanted = math.ceil(self._enough_s / (step_s * period))
        return max(_least_blocks(period), min(self._most_blocks, wanted))

    def _has_failed(self) -> bool:
        return has_failed(self._run.trial, self._comm)


def _least_blocks(period: int) -> int:
    return max(2, math.ceil(_LEAST_STEPS / period))


def run_steps(num_steps: int) -> Steps[None]:
    """Let some steps be made."""
    for _ in range(num_steps):
        yield


def exchange_period(plan: SyncPlan) -> int:
    """Return the period of a plan's exchanges in steps."""
    return max(rule.exchange.timing.period for rule in plan.rules)
