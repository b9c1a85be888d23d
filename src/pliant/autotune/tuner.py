"""Tuner of "auto": chooses a plan in the first steps of a training, and monitors it later."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from pliant.autotune.coordination import holds_on_all, share_number
from pliant.autotune.measurements import NetworkMeasurements
from pliant.autotune.monitor import MonitorResult, StepMonitor
from pliant.autotune.options import Auto
from pliant.autotune.plan_in_force import PlanInForce
from pliant.autotune.plan_search import PlanSearch
from pliant.autotune.prospects import Prospects
from pliant.autotune.recall import Conditions, Recalled
from pliant.autotune.rejected import UNDONE
from pliant.autotune.searches import Searches
from pliant.autotune.short_searches import ShortSearches
from pliant.autotune.summary import Choice
from pliant.autotune.trials import Steps, TrialRunner
from pliant.autotune.tunable_run import TunableRun
from pliant.autotune.watching import WATCHED_STEPS, WatchedSteps, observe_run, resume_steps, watch_first_steps
from pliant.comm.base import Comm
from pliant.engine.joint_optimizer import optimizer_name
from pliant.planner import Scale, SearchResult, Trial, all_of
from pliant.planner.challenge import is_changed
from pliant.profiling.observe import Observation
from pliant.spec import Topology, Workload

__all__ = ["AutoTuner"]

_log = logging.getLogger("pliant")

_ENOUGH_S = 0.6
"""Time in which blocks of a trial begin."""
_HOLD_STEPS = 50
"""Steps after a search without another one; twice as many each time that it kept the plan, or a change came soon."""


class AutoTuner(PlanInForce):
    """Chooses the plan of a run while it trains. All ranks have one; the first decides, and tells the others.

    Args:
        run: The run.
        auto: Options.
        observation: Of the run's first steps; None to begin from conditions that are known.
        comm: Over a group that nothing else uses.
        recalled: What earlier runs have left; nothing if None.
        hosts: Ranks of each host; those of each machine if None.

    """

    keeps_from_joining = "auto measures all ranks in every step"

    def __init__(
        self,
        run: TunableRun,
        auto: Auto,
        observation: Observation | None,
        comm: Comm,
        recalled: Recalled | None = None,
        hosts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__(run, auto, comm, recalled or Recalled())
        self._observation = observation
        self.choice: Choice | None = None
        """Outcome of the last search; None until one has ended."""
        self.prospects: Prospects | None = None
        """Predictions before the last search, on the first rank; None elsewhere."""
        self.watched: WatchedSteps
        """Findings of the first steps, there once a search has begun."""
        self._short = ShortSearches(run, comm, self._exact.plan("auto"))
        self._measured = NetworkMeasurements(comm, hosts)
        self._resumes_s = self._turns_s = math.inf
        self._tuning = self._tune()
        next(self._tuning)

    @property
    def is_resumed(self) -> bool:
        """Whether the conditions are those of an earlier run, and none of this one's steps was watched before."""
        return self._observation is None

    def after_step(self, step: int) -> None:
        """Go on; a plan may be switched in it. Collective."""
        next(self._tuning)

    def end_trial(self) -> None:
        """Go back to the base plan from a trial, if one is on. Collective."""
        plan = self._run.plan
        if self._run.trial.is_on and (why := self._trials.end()):
            text = self._rejected.note_failure(UNDONE, why, plan, {})
            self.explanation = f"{self.explanation}\n{text}"

    def close(self) -> None:
        """Stop, whatever it was about to do."""
        self._tuning.close()
        if self._observation is not None:
            self._observation.close()
        self._comm.close()

    def _tune(self) -> Steps[None]:
        yield from self._watch()
        self._searches = Searches(self._auto)
        hold_steps, expected_s = _HOLD_STEPS, (yield from self._choose_again())
        if expected_s is None and self._observation is None:
            self._observation = observe_run(self._run, WATCHED_STEPS)
            yield from self._watch()
            self._searches.limits = self._auto
        workload = self.watched.workload
        if expected_s is None:
            self._measured.look(self.watched, self._run.plan, self._auto.probe_s)
            expected_s = yield from self._choose(workload, self._measured.topology, None)
        while True:
            result = yield from self._monitor(hold_steps, math.nan if expected_s is None else expected_s)
            if result.at_once:
                self._searches.forget_last()
            while True:
                before = self._run.plan.hash
                if result.violation is not None:
                    self._give_up(result.violation, workload)
                elif not self._auto.may_search(result.step_s, self._run.steps):
                    self._auto = replace(self._auto, watch=False)  # the rest is too short for another search
                else:
                    probes = result.changed or self._is_due(self._measured.due_s(self._auto.probe_s))
                    if not probes or self._leave(workload):  # nothing else may be under way while links are measured
                        break
                result = yield from self._monitor(hold_steps)
            self._searches.limits = self._auto = self._auto.limited(result.step_s, self._run.steps)
            if self._comm.rank == 0:
                _log.info("auto searches again after step %d: %s.", self._run.steps, result.reason)
            if probes:
                self._measured.probe(self._short.probe_s(result.step_s, self._auto.probe_s))
            expected_s = yield from self._choose(workload, self._measured.topology, result)
            if result.changed:
                restless = self._run.plan.hash == before or result.steps < 2 * hold_steps
                hold_steps = 2 * hold_steps if restless else _HOLD_STEPS

    def _watch(self) -> Steps[None]:
        run, observation, comm, known = self._run, self._observation, self._comm, self._recalled.known
        if observation is not None:
            self.watched = yield from watch_first_steps(run, observation, comm, self._stay_exact)
        elif known is not None:
            self.watched = yield from resume_steps(run, known, comm)
        if not self.watched.finds_loss:
            self._rejected.add(all_of("tasc"))  # whose curvature nobody could feel
        self._auto = self._auto.limited(self.watched.step_s, run.steps)

    def _is_due(self, due_s: float) -> bool:
        """Say whether so much time has passed since the run began; inf is never due. Collective."""
        return math.isfinite(due_s) and share_number(self._comm, self._searches.elapsed_s) >= due_s

    def _due_s(self) -> float:
        """Return the time from now on after which a search goes on, or unknown links are probed; inf for never."""
        due_s = min(self._measured.due_s(self._auto.probe_s), self._resumes_s, self._turns_s)
        return due_s if math.isinf(due_s) else due_s - share_number(self._comm, self._searches.elapsed_s)

    def _choose_again(self) -> Steps[float | None]:
        """Put the plan of an earlier run in force; return its step time, or None if conditions are others now."""
        known = self._recalled.known
        if known is None:
            return None
        self._measured.recall(known)
        now, before, expected_s = self.watched.bytes_per_s, known.bytes_per_s, None
        if now and before and is_changed(now, before):
            self._recalled.note(f"It was not used: messages went at {now:.3g} bytes per s, and at {before:.3g} then.")
        else:
            expected_s = yield from self._choose(self.watched.workload, known.topology, None, is_known=True)
        if expected_s is None:
            self._searches.forget_last()
        return expected_s

    def _monitor(self, hold_steps: int, expected_s: float = math.nan) -> Steps[MonitorResult]:
        bounds = None if self._is_exact else self._auto.bounds
        has_room = self._short.has_room if self._auto.watch else None
        monitor = StepMonitor(self._run, self._comm, bounds=bounds, may_search=has_room)
        return (yield from monitor.watch(hold_steps, expected_s, self._due_s()))

    def _choose(
        self,
        workload: Workload,
        topology: Topology,
        result: MonitorResult | None,
        *,
        is_known: bool = False,
    ) -> Steps[float | None]:
        """Try plans, hold the best against each other and against exact training, and keep the fastest.

        Args:
            workload: What a step computes and exchanges.
            topology: Hosts and links.
            result: Reason for another search; None for the first.
            is_known: Whether an earlier run has left the plan, which is put in force first.

        Returns:
            Step time when the best was tried; NaN if it is not known. None if the experience does not hold any more.

        """
        began, has_changed = self._run.steps, result is not None and result.changed
        in_force = Trial(genes=self._genes, steps_s=((result or self.watched).step_s,))
        rate = 0.0 if has_changed else self.watched.bytes_per_s  # messages were not watched since the change
        measured = self._measured
        conditions = Conditions(workload, topology, measured.overheads, rate, knows_links=measured.is_complete)
        search = self._new_search(conditions, in_force, result, is_known=is_known)
        self.prospects = None

        def pays(gain: float) -> bool:
            self.prospects = Prospects(gain=gain, conditions=conditions, quality=search.quality, seed=self._auto.seed)
            return self._auto.pays(gain, in_force.step_s, began)

        search.weigh(pays)
        if result is not None and self._run.plan.hash != self._exact.plan("auto").hash:  # it is still in force
            if search.is_idle():
                self._resumes_s = self._resumes(search.asking.found)
                return math.nan
            if not self._leave(workload):
                return math.nan
        found = yield from search.try_plans()
        if is_known and not holds_on_all(self._comm, search.holds(found)):
            self._recalled.note("Its plan took another time than then, or failed, so that all was measured anew.")
            self.end_trial()
            return None
        decision = yield from search.decide(found, self._exact_name)
        self._short.note_search(began + search.asking.spared, anew=search.anew)
        chosen = decision.plan(self._exact.plan("auto"))
        self._is_exact, self._genes = decision.best.is_exact or not decision.adopted, decision.genes
        if found is not None:
            search.keep(found, self._genes, decision.expected_s)
        left_s = self._turns_s if search.resumes and not search.awaits_turns else math.inf
        self._resumes_s, self._turns_s = self._resumes(found), min(left_s, decision.due_s)
        if self._run.plan.hash != chosen.hash:
            self.end_trial()
        if failure := self._guard.begin(chosen):
            self._note_fallback(chosen, failure)
            decision = replace(decision, gains=(), adopted=False, expected_s=math.nan)
        why = search.explain(found, decision)
        self.choice = decision.choice(self._exact.plan("auto"), 0 if found is None else len(found.trials))
        step_s = decision.expected_s
        if result is None and not decision.adopted and math.isnan(step_s):
            step_s = self.watched.step_s  # of torch's own exchange, or of that in 16 bits
        advice = self._advise(workload, topology, step_s)
        self.explanation = self._chosen_why = "\n".join([why, advice, *self._rejected.failures])
        return decision.expected_s

    def _resumes(self, found: SearchResult | None) -> float:
        """Return the time since the run began from which on a search that has found this goes on. Collective."""
        return share_number(self._comm, math.inf if found is None else found.resumes_s)

    def _new_search(
        self, conditions: Conditions, in_force: Trial, result: MonitorResult | None, *, is_known: bool
    ) -> PlanSearch:
        """Return a search from the plan in force; arguments as of `_choose`."""
        exact, began = self._exact.plan("auto"), self._run.steps
        kind, scale = optimizer_name(self._run.optimizer), Scale.of(conditions.workload, conditions.topology)
        anew = result is None or (result.at_once and self._short.may_begin_anew)
        self._trials = self._short.trials(in_force.step_s)
        if anew:
            self._trials = TrialRunner(self._run, self._comm, _ENOUGH_S, exact)
        return PlanSearch(
            comm=self._comm,
            auto=self._auto,
            trials=self._trials,
            searches=self._searches,
            recalled=self._recalled,
            rejected=self._rejected,
            exact=self._exact,
            in_force=in_force,
            before=self._run.plan.hash,
            conditions=conditions,
            quality=self._auto.quality_with(kind, scale, self._rejected.genes),
            anew=anew,
            resumes=(resumes := not (anew or result is None or result.changed)),
            awaits_turns=resumes and self._is_due(self._turns_s),
            steps_left=lambda: math.inf if anew else self._short.steps_left - (self._run.steps - began),
            most_s=math.inf if result is not None else self._auto.search_s(in_force.step_s, began),
            is_known=is_known,
            say=self._say,
            end_trial=self.end_trial,
        )
