"""Monitoring between two searches: step times, and the quality of the adopted plan."""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pliant.autotune.bounds import BoundCheck, BoundViolation, QualityBounds
from pliant.autotune.finalists import UNEQUAL
from pliant.autotune.quality_probe import QualityProbe
from pliant.autotune.trials import UNCOUNTED, Steps, exchange_period, run_steps
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text

__all__ = ["FAILED", "MonitorResult", "StepMonitor"]

FAILED = "failed"
"""In place of the name of a bound: the plan has raised something."""

_WINDOW_STEPS, _MOST_WINDOW_STEPS, _WINDOW_S = 4, 16, 0.1
"""A window has 4 steps, or, where those are short, as many as 0.1 s has, up to 16: medians of less are noise."""
_WINDOW_PERIODS = 3
"""And so many periods of a plan, if 16 steps have them: a median of less does not pass over an evaluation."""
_APART_STEPS = 4
"""Steps beside which a report is shared where ranks do not wait for each other in a step: one would be a meeting."""
_CHANGED = 1.3
"""A window of steps is odd if their median is so many times longer, or shorter, than is usual."""
_ODD_WINDOWS = 3
"""Windows in a row that are odd to the same side, which is a change."""
_FIRST_WINDOWS = 5
"""Windows whose median is the usual step time: a single one may have been lucky."""
_LOOK_EVERY = 4
"""In a window, one step of so many is looked at, if the plan is not exact."""


@dataclass(frozen=True, kw_only=True)
class MonitorResult:
    """Reason for which monitoring has ended; the same on all ranks."""

    steps: int
    """That it lasted."""
    step_s: float
    """Last step time; inf if a bound was crossed."""
    usual_s: float
    """Step time before, or the expected one."""
    at_once: bool
    """Whether steps never took what they did when the plan was chosen: the search may have been of two networks."""
    changed: bool
    """Whether step times have changed; else a search was due, or a bound was crossed."""
    violation: BoundViolation | None
    """Which figure was beyond which bound, if any."""

    @property
    def reason(self) -> str:
        """Reason for which a search follows."""
        took = f"steps took {1e3 * self.step_s:.4g} ms instead of {1e3 * self.usual_s:.4g} ms"
        return took if self.changed else "there is time for it now"


class StepMonitor:
    """Monitors the plan in force until step times change, a search is due, or a quality bound is crossed.

    Each window of steps is followed by one all-reduce of one number, so that all ranks decide alike; a bound that is
    crossed on one rank ends monitoring on all.

    Args:
        run: The run.
        comm: Over a group that nothing else uses.
        bounds: Bounds of a plan that is not exact; None for one that is.
        may_search: Says of a step time, the same on all ranks, whether a search may follow when it has changed;
            monitoring goes on until one may. None if a change is not answered.

    """

    def __init__(
        self,
        run: TunableRun,
        comm: Comm,
        *,
        bounds: QualityBounds | None,
        may_search: Callable[[float], bool] | None,
    ) -> None:
        self._run, self._comm, self._may_search = run, comm, may_search
        self._quality_probe = QualityProbe(run) if bounds is not None else None
        self._bound_check = BoundCheck(bounds) if bounds is not None else None
        self._period = exchange_period(run.plan)
        self._beside = _APART_STEPS if self._period == 1 and run.plan.exchanges_weights else 1

    def watch(self, hold_steps: int, expected_s: float = math.nan, due_s: float = math.inf) -> Steps[MonitorResult]:
        """Train under the plan in force until monitoring ends.

        Args:
            hold_steps: Steps before which no search begins, whatever they take.
            expected_s: Step time when the plan was chosen; NaN if it is not known. The first windows give the usual
                time, unless steps took twice or half as long in them: then the search was of two networks.
            due_s: Time of training after which a search is due, even if nothing has changed.

        """
        try:
            return (yield from self._watch(hold_steps, expected_s, due_s))
        finally:
            if self._quality_probe is not None:
                self._quality_probe.close()

    def _watch(self, hold_steps: int, expected_s: float, due_s: float) -> Steps[MonitorResult]:
        may_search = self._may_search
        while may_search is None and self._bound_check is None and not self._run.trial.guards:
            yield
        yield from run_steps(UNCOUNTED)
        size = self._in_periods(2 * _WINDOW_STEPS)
        now_s, violation = yield from self._window(size)
        made, trained_s = size + self._beside, (size + self._beside) * now_s
        first_s, odd, usual_s, at_once = [now_s], 0, now_s, False
        while violation is None and not (
            may_search is not None
            and (abs(odd) >= _ODD_WINDOWS or trained_s >= due_s)
            and made >= hold_steps
            and may_search(now_s)
        ):
            # Of what the last one took: where steps have become long, few of them say so.
            size = self._in_periods(max(_WINDOW_STEPS, min(_MOST_WINDOW_STEPS, math.ceil(_WINDOW_S / now_s))))
            now_s, violation = yield from self._window(size)
            made, trained_s = made + size + self._beside, trained_s + (size + self._beside) * now_s
            if len(first_s) < _FIRST_WINDOWS:
                first_s.append(now_s)
                usual_s = statistics.median(first_s)
                at_once = bool(_side(usual_s, expected_s, UNEQUAL))  # never, if that is NaN
                usual_s = expected_s if at_once else usual_s
            side = _side(now_s, usual_s)
            odd = odd + side if side * odd > 0 else side
        changed = abs(odd) >= _ODD_WINDOWS
        return MonitorResult(
            steps=made, step_s=now_s, usual_s=usual_s, at_once=at_once, changed=changed, violation=violation
        )

    def _in_periods(self, num_steps: int) -> int:
        least = min(_WINDOW_PERIODS, _MOST_WINDOW_STEPS // self._period)
        return max(math.ceil(num_steps / self._period), least) * self._period

    def _window(self, num_steps: int) -> Steps[tuple[float, BoundViolation | None]]:
        """Return the slowest rank's median step time over periods, and the violation of a bound, if any.

        Reports are shared beside one more step, or some, so that ranks that are as far apart need not wait.
        """
        took_s: list[float] = []
        for first in range(0, num_steps, self._period):
            start_s = time.perf_counter()
            for step in range(first, first + self._period):
                if self._quality_probe is not None and step % _LOOK_EVERY == 0:
                    with self._run.trial.catch_errors():
                        self._quality_probe.begin()
                    yield
                    with self._run.trial.catch_errors():
                        self._quality_probe.end()
                else:
                    yield
            took_s.append((time.perf_counter() - start_s) / self._period)
        verdict = None
        with self._run.trial.catch_errors():
            if self._quality_probe is not None and self._bound_check is not None:
                verdict = self._bound_check.verdict(self._quality_probe.figures())
        if self._run.trial.why:
            verdict = BoundViolation(bound=FAILED, why=f"rank {self._comm.rank}: {self._run.trial.why}")
        # One number: of five, each of a ring's parts would have to wait for a core on each rank.
        worst = torch.tensor([statistics.median(took_s) if verdict is None else math.inf], dtype=torch.float64)
        sharing = self._comm.all_reduce(worst, "max")
        yield from run_steps(self._beside)
        sharing.wait()
        now_s = float(worst)
        return now_s, self._first_verdict(verdict) if math.isinf(now_s) else None

    def _first_verdict(self, mine: BoundViolation | None) -> BoundViolation:
        """Return that of the first rank that has one. Collective."""
        first = torch.tensor([self._comm.size if mine is None else self._comm.rank])
        self._comm.all_reduce(first, "min").wait()
        text = broadcast_text(json.dumps([] if mine is None else [mine.bound, mine.why]), self._comm, int(first))
        bound, why = json.loads(text)
        return BoundViolation(bound=bound, why=why)


def _side(now_s: float, usual_s: float, times: float = _CHANGED) -> int:
    """Return 1 if a time is so many times longer than is usual, -1 if it is so many times shorter, else 0."""
    return int(now_s > times * usual_s) - int(usual_s > times * now_s)
