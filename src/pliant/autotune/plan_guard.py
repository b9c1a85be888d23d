"""Guard of the adopted plan: an error on any rank is undone on all, and exact training goes on."""

from pliant.autotune.coordination import has_failed
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.spec import SyncPlan

__all__ = ["PlanGuard"]


class PlanGuard:
    """Guards the adopted plan, unless it is the base plan, which no other could replace.

    Its errors are kept (`PlanOnTrial`). Ranks tell each other when it is put in force, after each window of monitoring,
    when it is left, and when the run closes.

    Bytes: 8 when it is put in force, when it is left and at the end.

    Args:
        run: The run.
        comm: Over a group that nothing else uses.
        base: The exact plan, torch's own exchange.

    """

    def __init__(self, run: TunableRun, comm: Comm, base: SyncPlan) -> None:
        self._run, self._comm, self._base = run, comm, base

    def begin(self, plan: SyncPlan) -> str:
        """Put a plan in force; return why that has failed, if it has on any rank. Collective, as all of these are."""
        if plan.hash == self._base.hash:
            self._run.switch(plan)
            return ""
        self._run.adopt(plan)
        return self._why()

    def leave(self, *, pay: bool = True) -> str:
        """Put the base plan in its place, and pass on its residuals or drop them; return why that has failed."""
        with self._run.trial.catch_errors():
            self._run.switch(self._base, pay=pay)
        return self.end()

    def end(self) -> str:
        """Guard it no more; return why it has failed, if it has."""
        why = self._why() if self._run.trial.guards else ""
        self._run.trial.end()
        return why

    def fall_back(self) -> None:
        """Put the base plan in the place of a plan that has failed, as all ranks know."""
        self._run.fall_back(self._base)
        self._run.trial.end()

    def _why(self) -> str:
        trial = self._run.trial
        if not has_failed(trial, self._comm):
            return ""
        why = trial.why
        self.fall_back()
        return why
