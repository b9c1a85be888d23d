"""Tuner of "auto": chooses a plan in the first steps of a training, and monitors it later."""

import logging
import math
import statistics
from collections.abc import Generator
from dataclasses import replace
from functools import partial

from pliant.autotune.bounds import BoundViolation
from pliant.autotune.coordination import advance_search, holds_on_all, share_finalists, share_request, slowest_s
from pliant.autotune.finalists import Finalist, select_finalists
from pliant.autotune.monitor import FAILED, MonitorResult, StepMonitor
from pliant.autotune.options import Auto
from pliant.autotune.plan_guard import PlanGuard
from pliant.autotune.prospects import Prospects, look_ahead
from pliant.autotune.rejected import RejectedPlans
from pliant.autotune.searches import Searches
from pliant.autotune.summary import Choice, explain
from pliant.autotune.trials import Steps, TrialRunner, TunableRun
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.engine.attachments import AttachedTuner
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.outputs import OutputWatch
from pliant.engine.relaxed_model import module_of, strip_wrappers
from pliant.netmodel import Overheads
from pliant.network.machine import measure_machine
from pliant.network.probing import probe
from pliant.planner import FAMILIES, Gene, Genome, Quality, SearchResult, Space, Trial, advise, all_of
from pliant.planner.schedules import scheduled_plan
from pliant.profiling.observe import Observation
from pliant.simulator import CostFeatures
from pliant.spec import SyncPlan, Topology, Workload

__all__ = ["AutoTuner"]

_log = logging.getLogger("pliant")

_EXACT = {False: Genome(Gene("exact", {"bits": 32})), True: Genome(Gene("torch_shards", {}))}
"""Whether a model is sharded -> torch's own exchange: DDP's, in its own buckets, or FSDP2's."""
_NAMES = {False: "DDP's own exchange", True: "FSDP2's own exchange"}
_ENOUGH_S, _TURNS = 0.6, 3
_AGAIN_TRIALS, _AGAIN_S, _AGAIN_TURNS = 2, 0.06, 2
"""Limits of a search after a change, which is short: together with the windows that detect it, about 50 steps."""
_UNDONE = "A plan failed in its trial, which was undone"
_FINALISTS = 3
"""So many of the best are held against exact training, and each other."""
_HOLD_STEPS = 50
"""Steps after a search without another one; twice as many each time that it kept the plan, or a change came soon."""


class AutoTuner(AttachedTuner):
    """Chooses the plan of a run while it trains. All ranks have one; the first decides, and tells the others.

    Args:
        run: The run.
        auto: Options.
        observation: Of the run's first steps.
        comm: Over a group that nothing else uses.

    """

    keeps_from_joining = "auto measures all ranks in every step"

    def __init__(self, run: TunableRun, auto: Auto, observation: Observation, comm: Comm) -> None:
        self._run, self._auto, self._observation, self._comm = run, auto, observation, comm
        self._exact_name = _NAMES[run.num_shards > 0]
        self.explanation = "auto is still watching the first steps."
        """Paragraph on the plan that was chosen, or rejected, and why; the same on all ranks."""
        self.advice = None
        """Changes of the optimizer for the plan in force, for `pliant.planner.apply`; None until one was chosen."""
        self.choice: Choice | None = None
        """Outcome of the last search; None until one has ended."""
        self.prospects: Prospects | None = None
        """Predictions before the last search, on the first rank; None elsewhere."""
        self._exact = self._genes = _EXACT[run.num_shards > 0]  # of the plan in force, on the first rank
        self._is_exact = True
        self._guard = PlanGuard(run, comm, self._exact.plan("auto"))
        self._rejected = RejectedPlans(comm.rank, self._exact.base)
        if auto.equal_weights:
            self._rejected.add(gene for name in FAMILIES for gene in all_of(name) if gene.changes_state)
        self._chosen_why = ""  # explanation of what the last search has chosen
        self._overheads: Overheads | None = None  # until the machine was measured
        self._tuning = self._tune()
        next(self._tuning)

    def after_step(self, step: int) -> None:
        """Go on; a plan may be switched in it. Collective."""
        next(self._tuning)

    def end_trial(self) -> None:
        """End the trial that is on, if one is: the run closes under the base plan. Collective."""
        if self._run.trial.is_on:
            self._trials.end()

    def end_plan(self) -> None:
        """Undo what the adopted plan has raised last, as when it ended. Collective, once nothing is in flight."""
        plan = self._run.plan
        self._note_fallback(plan, self._guard.end())

    def close(self) -> None:
        """Stop, whatever it was about to do."""
        self._tuning.close()
        self._observation.close()
        self._comm.close()

    def _tune(self) -> Steps[None]:
        ddp, module = strip_wrappers(self._run.model), module_of(self._run.model)
        outputs = OutputWatch(None if ddp is module else ddp, module, lambda: not self._observation.done)
        while True:
            yield
            if self._observation.done:  # its hooks go by themselves
                break
        outputs.close()
        if not holds_on_all(self._comm, self._run.curvature.is_told or outputs.loss()[0] is not None):
            self._rejected.add(all_of("tasc"))  # whose curvature nobody could feel
        while not holds_on_all(self._comm, not self._observation.blind):
            self.explanation = (
                f"auto keeps {self._exact_name}: it could not see when backward begins, since the model's output has "
                "no tensor that it finds (in lists, dicts and dataclasses)."
            )
            yield
        workload = self._observation.workload()
        self._auto = self._auto.limited(slowest_s(self._comm, self._observation.step_s))
        self._searches = Searches(self._auto)
        hold_steps, result = _HOLD_STEPS, None
        while True:
            before = self._run.plan.hash
            if result is not None:
                self._note_fallback(self._run.plan, self._guard.leave())
            if self._overheads is None:
                self._overheads = Overheads.of(measure_machine(self._comm, budget_s=self._auto.probe_s / 5))
            topology = probe(self._comm, budget_s=self._auto.probe_s, connections=self._comm.connections)
            expected_s = yield from self._choose(workload, topology, result)
            if result is not None:
                restless = self._run.plan.hash == before or result.steps < 2 * hold_steps
                hold_steps = 2 * hold_steps if restless else _HOLD_STEPS
            result = yield from self._monitor(hold_steps, expected_s)
            if result.at_once:
                self._searches.forget_last()
            while result.violation is not None or not self._auto.may_search(result.step_s, self._run.steps):
                if result.violation is not None:
                    self._give_up(result.violation, workload)
                else:
                    self._auto = replace(self._auto, watch=False)  # the rest is too short for another search
                result = yield from self._monitor(hold_steps)
            self._searches.limits = self._auto = self._auto.limited(result.step_s, self._run.steps)
            if self._comm.rank == 0:
                took = f"{1e3 * result.step_s:.4g} ms instead of {1e3 * result.usual_s:.4g} ms"
                _log.info("auto searches again after step %d: steps took %s.", self._run.steps, took)

    def _monitor(self, hold_steps: int, expected_s: float = math.nan) -> Steps[MonitorResult]:
        bounds = None if self._is_exact else self._auto.bounds
        monitor = StepMonitor(self._run, self._comm, bounds=bounds, watches_times=self._auto.watch)
        return (yield from monitor.watch(hold_steps, expected_s))

    def _choose(self, workload: Workload, topology: Topology, result: MonitorResult | None) -> Steps[float]:
        """Try plans, compare the best with exact training in turns, and keep the faster.

        Returns:
            Step time when the best was tried, since the network may have changed; NaN if it is not known.

        """
        self._plan_of = partial(scheduled_plan, workload=workload, topology=topology)
        quality = Quality(
            budget=self._auto.quality,
            optimizer=optimizer_name(self._run.optimizer),
            unmeasured=self._auto.unmeasured,
            rejected=self._rejected.genes,
        )
        anew = result is None or result.at_once
        exact = self._exact.plan("auto")
        self._trials = tryout = TrialRunner(self._run, self._comm, _ENOUGH_S if anew else _AGAIN_S, exact)
        in_force = Trial(genes=self._genes, steps_s=(result.step_s,)) if result is not None else None
        if self._comm.rank == 0 and self._overheads is not None:
            self.prospects = look_ahead(workload, topology, self._overheads, quality, self._exact, self._auto.seed)
        found = yield from self._run_search(workload, topology, quality, in_force, anew=anew)
        best_found = select_finalists(found, in_force, quality, _FINALISTS if anew else 1) if found is not None else []
        shared = share_finalists(self._comm, best_found, quality, self._plan_of)
        known = {self._plan_of(trial.genes).hash: trial.genes for trial in best_found}
        rivals = [each for each in shared if each.plan.hash != exact.hash]
        best, gains, adopted = shared[0] if shared else Finalist(exact, True, 1.0, math.nan), (), False
        expected_s = best.tried_s
        if rivals:
            self._say(f"auto is still searching: the best {len(rivals)} take turns with {self._exact_name}.")
            turns = _TURNS if anew else _AGAIN_TURNS
            compared = yield from tryout.compare([r.plan for r in rivals], [r.ratio for r in rivals], turns)
            for k, why in compared.failed.items():
                self._rejected.note_failure(_UNDONE, why, rivals[k].plan, known)
            if compared.gains:
                best, gains, adopted = rivals[compared.best], compared.gains, compared.is_faster
            # Of several plans, since one alone may have had to wait for a core in its trial.
            since = [r.tried_s / s for r, s in zip(rivals, compared.plans_s, strict=True) if not math.isnan(s)]
            now_s = compared.plans_s[compared.best] if adopted else compared.exact_s
            expected_s = statistics.median(since) * now_s if since else math.nan
        chosen = best.plan if adopted else exact
        self._is_exact = best.is_exact or not adopted
        self._genes = known.get(chosen.hash, self._exact)
        self._note_fallback(chosen, self._guard.begin(chosen))
        why = explain(workload, topology, best.plan, exact, best.ratio, gains, adopted=adopted, found=found)
        ahead = self.prospects.text if self.prospects else ""
        why = broadcast_text(f"{' '.join(filter(None, (why, quality.sentence)))}\n{ahead}", self._comm)
        self.choice = Choice(plan=chosen, steps_ratio=best.ratio if adopted else 1.0, gains=gains, adopted=adopted)
        self.explanation = self._chosen_why = "\n".join([why, self._advise(workload), *self._rejected.failures])
        return expected_s

    def _run_search(
        self, workload: Workload, topology: Topology, quality: Quality, in_force: Trial | None, *, anew: bool
    ) -> Steps[SearchResult | None]:
        """Try the plans that the first rank asks for; return the result of the search there, and None elsewhere."""
        num_trials = self._auto.max_trials if anew else min(_AGAIN_TRIALS, self._auto.max_trials)
        pays = self.prospects is not None and self.prospects.gain >= self._auto.least_gain
        asking = self._search(workload, topology, quality, in_force, num_trials) if pays else None
        asked, found = advance_search(asking, None)
        number = 0
        while (wanted := share_request(self._comm, asked, self._plan_of)) is not None:
            number += 1
            self._say(f"auto is still searching: trial {number} of at most {num_trials} is under way.")
            blocks_s, why = yield from self._trials.time_plan(*wanted)
            if why:
                self._rejected.note_failure(_UNDONE, why, wanted[0], {wanted[0].hash: asked[0]} if asked else {})
            if asked is not None:
                status = "failed" if why else "aborted" if len(blocks_s) == 1 else "ok"
                trial = Trial(genes=asked[0], steps_s=tuple(blocks_s), status=status, reason=why)
                asked, found = advance_search(asking, trial)
        return found

    def _say(self, progress: str) -> None:
        """Set the explanation to the current state, followed by the earlier choice, if there was one."""
        self.explanation = f"{progress}\nBefore: {self._chosen_why}" if self._chosen_why else progress

    def _advise(self, workload: Workload) -> str:
        """Say what the plan in force asks of the optimizer; the same on all ranks."""
        ranks = self._comm.size
        self.advice = advise(
            workload,
            ranks,
            self._run.plan,
            optimizer=optimizer_name(self._run.optimizer),
            tuned_for=(self._auto.tuned_for_ranks or ranks) * workload.batch_size,
        )
        return self.advice.paragraph

    def _search(
        self, workload: Workload, topology: Topology, quality: Quality, in_force: Trial | None, num_trials: int
    ) -> Generator[tuple[Genome, float], Trial, SearchResult]:
        features = CostFeatures(workload, topology, self._overheads, workload.rank_factors)
        seeds = {"in force": self._genes, "exact": self._exact}
        return self._searches.search(Space(workload, topology, quality), features, seeds, in_force, num_trials)

    def _give_up(self, verdict: BoundViolation, workload: Workload) -> None:
        """Return to exact training after a violation on any rank, and reject the exchanges in question."""
        if verdict.bound == FAILED:
            plan = self._run.plan
            self._guard.fall_back()
            self._note_fallback(plan, verdict.why)
            return
        self._rejected.add(gene for gene in self._genes.genes if not FAMILIES[gene.family].exact)
        why = (
            f"After step {self._run.steps} a plan was given up for {self._exact_name}: {verdict.why}. What it relaxed "
            f"is not tried again in this run. It was {self._run.plan}"
        )
        # A residual beyond its bound would come down on the weights in one step; smaller ones are paid.
        plan = self._run.plan
        self._note_fallback(plan, self._guard.leave(pay=verdict.bound != "residual"))
        self._genes, self._is_exact = self._exact, True
        if self._comm.rank == 0:
            _log.warning(why)
        self.explanation = f"{why}\n{self._advise(workload)}\nBefore: {self.explanation}"

    def _note_fallback(self, plan: SyncPlan, why: str) -> None:
        """Say that an adopted plan was undone, and refuse what is in it from now on; nothing if it has not failed."""
        if not why:
            return
        what = f"By step {self._run.steps} a plan in force had failed, which has made place for {self._exact_name}"
        text = self._rejected.note_failure(what, why, plan, {plan.hash: self._genes})
        self._genes, self._is_exact = self._exact, True
        self.explanation = f"{text}\nBefore: {self.explanation}"
