"""Figures of a run's steps, from counters that it has anyway."""

import math
import time
from collections import deque
from itertools import pairwise
from statistics import median
from typing import NamedTuple, Protocol

from pliant.spec import SyncPlan
from pliant.spec.units import format_time

__all__ = ["Counts", "Metered", "StepMeter", "StepPace", "name_of", "now_s"]

_REMEMBERED = 256
"""Steps of which a sentence about a run speaks."""


class Counts(NamedTuple):
    """Counters of a run after a step."""

    at_s: float
    """Time by the clock of `time.perf_counter`."""
    step: int
    passes: int
    """Backward passes that were exchanged; 0 where nobody counts them."""
    sent_bytes: int
    received_bytes: int
    exposed_s: float


class Metered(Protocol):
    """The part of a run that its figures come from."""

    plan: SyncPlan

    def counts(self) -> Counts:
        """Return the counters now. No communication."""
        ...

    @property
    def ddp_bytes(self) -> float:
        """Bytes that DDP sends from a rank in one backward pass; 0 where there is no comparison."""
        ...

    def residual_norm(self) -> float:
        """Return the Euclidean norm of this rank's residuals; reads all of them."""
        ...


class StepMeter:
    """Means over the steps since the last reading.

    Args:
        run: The run.

    """

    def __init__(self, run: Metered) -> None:
        self._run = run
        self._last = self._since = run.counts()
        self._plan: SyncPlan | None = None
        self._switches = -1

    def take(self, *, residual: bool = False) -> dict[str, float | str]:
        """Return the figures of the steps since the last call; nothing if there were none. No communication.

        Seconds and bytes are per step. ``bytes_vs_ddp`` counts since the plan in force was first seen. ``plan`` is
        there when it is another than before.
        """
        now, last, run = self._run.counts(), self._last, self._run
        num_steps = now.step - last.step
        if num_steps <= 0:
            return {}
        self._last = now
        values: dict[str, float | str] = {
            "step_s": (now.at_s - last.at_s) / num_steps,
            "exposed_s": (now.exposed_s - last.exposed_s) / num_steps,
            "sent_bytes": (now.sent_bytes - last.sent_bytes) / num_steps,
            "received_bytes": (now.received_bytes - last.received_bytes) / num_steps,
        }
        if run.plan is not self._plan:
            self._plan, self._since = run.plan, last
            self._switches += 1
            values["plan"] = name_of(run.plan)
        values["plan_switches"] = self._switches
        if (ddp_bytes := run.ddp_bytes * _passes(self._since, now)) > 0:
            values["bytes_vs_ddp"] = (now.sent_bytes - self._since.sent_bytes) / ddp_bytes
        if residual:
            values["residual_norm"] = run.residual_norm()
        return values


class StepPace:
    """Counters after each of the last steps under the plan in force, for a sentence about the run."""

    def __init__(self) -> None:
        self._counts: deque[Counts] = deque(maxlen=_REMEMBERED)
        self._plan: SyncPlan | None = None

    def note(self, plan: SyncPlan, counts: Counts) -> None:
        """Note a step that has ended; another plan begins anew."""
        if plan is not self._plan:
            self._plan = plan
            self._counts.clear()
        self._counts.append(counts)

    def sentence(self, plan: SyncPlan, ddp_bytes: float) -> str:
        """Say what a step takes, waits and sends: the median of computing, and the mean of waiting and of bytes."""
        name, counts = name_of(plan), list(self._counts) if plan is self._plan else []
        if len(counts) < 2:
            return f"{name}: no two steps were made yet, so nothing was measured."
        first, last, num_steps = counts[0], counts[-1], len(counts) - 1
        waits_s = [b.exposed_s - a.exposed_s for a, b in pairwise(counts)]
        rest_s = [b.at_s - a.at_s - wait_s for (a, b), wait_s in zip(pairwise(counts), waits_s, strict=True)]
        wait_s = sum(waits_s) / num_steps
        told = f"{name}: a step takes {format_time(median(rest_s) + wait_s)}, {format_time(wait_s)} of it waiting"
        sent_bytes, theirs = last.sent_bytes - first.sent_bytes, ddp_bytes * _passes(first, last)
        if theirs <= 0:
            return f"{told}."
        if sent_bytes <= 0:
            return f"{told}; nothing was sent in the last {num_steps} steps."
        ratio = theirs / sent_bytes
        if math.isclose(ratio, 1.0, rel_tol=0.02):
            return f"{told}; DDP would send as many bytes."
        return f"{told}; DDP would send {ratio:.2g}x the bytes."


def name_of(plan: SyncPlan) -> str:
    """Return a plan's name, or how its first rule exchanges."""
    return plan.name or str(plan.rules[0].exchange)


def now_s() -> float:
    """Return the time by the clock of the figures."""
    return time.perf_counter()


def _passes(first: Counts, last: Counts) -> int:
    """Return the backward passes in which DDP would have exchanged: one a step where nobody counts them."""
    return (last.passes - first.passes) or (last.step - first.step)
