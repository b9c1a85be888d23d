"""Searches after a change: short trials, and a budget of steps, so that a network that alternates costs little."""

import math

from pliant.autotune.trials import TrialRunner
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.spec import SyncPlan

__all__ = ["ShortSearches"]

_ONE_OF = 10
"""One step of so many may be one of a search after a change."""
_ENOUGH_S = 0.06
"""Time in which blocks of a trial begin: with the windows that detect the change, a search takes some 30 steps."""
_MOST_BLOCKS, _LEAST_BLOCKS = 16, 3
"""Blocks of a trial, which are fewer where steps are long."""
_LEAST_PROBE_S, _MOST_ANEW = 0.1, 2


class ShortSearches:
    """Searches of a run after changes; together they take at most a tenth of the steps since the plan was first chosen.

    All of it follows from steps, and from times that ranks have shared: it is the same on all ranks.

    Args:
        run: The run.
        comm: Over a group that nothing else uses.
        base: Torch's own exchange.

    """

    def __init__(self, run: TunableRun, comm: Comm, base: SyncPlan) -> None:
        self._run, self._comm, self._base = run, comm, base
        self._since, self._spent, self._num_anew = run.steps, 0, 0

    @property
    def steps_left(self) -> int:
        """Steps that may be taken now."""
        return (self._run.steps - self._since) // _ONE_OF - self._spent

    @property
    def may_begin_anew(self) -> bool:
        """Whether a whole search may follow at once, since the first was of two networks: once in a run."""
        return self._num_anew < _MOST_ANEW

    def note_search(self, began: int, *, anew: bool) -> None:
        """Note that a search has ended, which began at a step; a whole one begins the count."""
        if anew:
            self._since, self._spent, self._num_anew = self._run.steps, 0, self._num_anew + 1
        else:
            self._spent += self._run.steps - began

    def trials(self, step_s: float) -> TrialRunner:
        """Return a runner of short trials, where the plan in force takes so much for a step."""
        blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, math.ceil(_ENOUGH_S / step_s)))
        return TrialRunner(self._run, self._comm, _ENOUGH_S, self._base, blocks)

    def has_room(self, step_s: float) -> bool:
        """Say whether there is room for the trial of a plan that exchanges in each step; argument as of `trials`."""
        return self.trials(step_s).num_steps(self._base) <= self.steps_left

    def probe_s(self, step_s: float, most_s: float) -> float:
        """Return the time of a probe: as long as the steps that are left would take; argument as of `trials`."""
        return min(most_s, max(_LEAST_PROBE_S, self.steps_left * step_s))
