"""Plan that is in force while a tuner chooses: its guard, the way back from it, and what is said of it."""

import logging
import math

from pliant.autotune.bounds import BoundViolation
from pliant.autotune.monitor import FAILED
from pliant.autotune.options import Auto
from pliant.autotune.plan_guard import PlanGuard
from pliant.autotune.recall import Recalled
from pliant.autotune.rejected import RejectedPlans
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.engine.attachments import AttachedTuner
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.relaxed_model import strip_wrappers
from pliant.planner import OWN_EXCHANGE, Gene, Genome, advise
from pliant.spec import SyncPlan, Topology, Workload

__all__ = ["PlanInForce"]

_log = logging.getLogger("pliant")

_COARSE = Genome(Gene("exact", {"bits": 16}))
_NAMES = {False: "DDP's own exchange", True: "FSDP2's own exchange"}


class PlanInForce(AttachedTuner):
    """Holds what a tuner knows of the plan in force, and gives it up; the same on all ranks but for its genes.

    Args:
        run: The run.
        auto: Options.
        comm: Over a group that nothing else uses.
        recalled: What earlier runs have left.

    """

    def __init__(self, run: TunableRun, auto: Auto, comm: Comm, recalled: Recalled) -> None:
        self._run, self._auto, self._comm, self._recalled = run, auto, comm, recalled
        self._exact_name = _NAMES[run.num_shards > 0]
        self.explanation = "auto is still watching the first steps."
        """Paragraph on the plan that was chosen, or rejected, and why; the same on all ranks."""
        self.advice = None
        """Changes of the optimizer for the plan in force, for `pliant.planner.apply`; None until one was chosen."""
        self._exact = OWN_EXCHANGE[run.num_shards > 0]
        self._genes = _COARSE if run.plan.hash == _COARSE.plan().hash else self._exact
        self._is_exact = True
        self._guard = PlanGuard(run, comm, self._exact.plan("auto"))
        self._rejected = RejectedPlans(comm.rank, self._exact.base)
        self._chosen_why = ""  # explanation of what the last search has chosen

    def end_plan(self) -> None:
        """Undo what the adopted plan has raised last, as when it ended. Collective, once nothing is in flight."""
        plan = self._run.plan
        self._note_fallback(plan, self._guard.end())

    def _stay_exact(self) -> None:
        """Keep torch's own exchange, since a rank cannot see when backward begins. Collective."""
        self._run.switch(self._exact.plan("auto"))
        self._genes = self._exact
        self.explanation = (
            f"auto keeps {self._exact_name}: it could not see when backward begins, since the model's output has "
            "no tensor that it finds (in lists, dicts and dataclasses)."
        )

    def _say(self, progress: str) -> None:
        """Set the explanation to the current state, followed by the earlier choice, if there was one."""
        self.explanation = f"{progress}\nBefore: {self._chosen_why}" if self._chosen_why else progress

    def _advise(self, workload: Workload, topology: Topology | None = None, step_s: float = math.nan) -> str:
        """Say what the plan in force asks of the optimizer, and of DDP; the same on all ranks."""
        ranks, broadcasts = self._comm.size, getattr(strip_wrappers(self._run.model), "broadcast_buffers", False)
        self.advice = advise(
            workload,
            ranks,
            self._run.plan,
            optimizer=optimizer_name(self._run.optimizer),
            tuned_for=(self._auto.tuned_for_ranks or ranks) * workload.batch_size,
            topology=topology if broadcasts else None,
            step_s=step_s,
        )
        return self.advice.paragraph

    def _give_up(self, verdict: BoundViolation, workload: Workload) -> None:
        """Return to exact training after a violation on any rank, and reject the exchanges in question."""
        if verdict.bound == FAILED:
            plan = self._run.plan
            self._guard.fall_back()
            self._note_fallback(plan, verdict.why)
            self._advise(workload)
            return
        self._rejected.add(gene for gene in self._genes.genes if not gene.exact)
        why = (
            f"After step {self._run.steps} a plan was given up for {self._exact_name}: {verdict.why}. What it relaxed "
            f"is not tried again in this run. It was {self._run.plan}"
        )
        # A residual beyond its bound would come down on the weights in one step; smaller ones are paid.
        plan = self._run.plan
        self._recalled.give_up(self._exact, why)
        self._note_fallback(plan, self._guard.leave(pay=verdict.bound != "residual"))
        self._genes, self._is_exact = self._exact, True
        if self._comm.rank == 0:
            _log.warning(why)
        self.explanation = f"{why}\n{self._advise(workload)}\nBefore: {self.explanation}"

    def _leave(self, workload: Workload) -> bool:
        """Put torch's own exchange in force for a search; say whether the plan had not failed by then. Collective.

        If it had, its step times tell nothing of the exchange that has taken its place.
        """
        plan = self._run.plan
        why = self._guard.leave()
        if why:
            self._note_fallback(plan, why)
            self._advise(workload)
        return not why

    def _note_fallback(self, plan: SyncPlan, why: str) -> None:
        """Say that an adopted plan was undone, and refuse what is in it from now on; nothing if it has not failed."""
        if not why:
            return
        what = f"By step {self._run.steps} a plan in force had failed, which has made place for {self._exact_name}"
        text = self._rejected.note_failure(what, why, plan, {plan.hash: self._genes})
        self._recalled.give_up(self._exact, text)
        self._genes, self._is_exact = self._exact, True
        self.explanation = f"{text}\nBefore: {self.explanation}"
