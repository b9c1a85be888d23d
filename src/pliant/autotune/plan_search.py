"""One search of a run: trials of the plans that the first rank asks for, and the decision among the best."""

import math
import statistics
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pliant.autotune.asking import Asking
from pliant.autotune.coordination import share_finalists, share_number, share_numbers, share_request
from pliant.autotune.finalists import (
    LEAVE_ABOVE,
    UNEQUAL,
    Finalist,
    PlanDecision,
    is_as_predicted,
    select_finalists,
    trial_of,
)
from pliant.autotune.options import Auto
from pliant.autotune.recall import Conditions, Recalled
from pliant.autotune.rejected import UNDONE, RejectedPlans
from pliant.autotune.searches import Searches
from pliant.autotune.summary import explain
from pliant.autotune.trials import Steps, TrialRunner
from pliant.autotune.turn_budget import TurnBudget
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.planner import Genome, Quality, SearchResult, Space, Trial, measured_genomes
from pliant.planner.challenge import CHANGED, SearchStart
from pliant.planner.experience import plans_text
from pliant.planner.schedules import scheduled_plan
from pliant.simulator import CostFeatures
from pliant.spec import SyncPlan

__all__ = ["PlanSearch"]

_TURNS, _AGAIN_TRIALS, _AGAIN_TURNS = 3, 2, 2
"""Turns of a comparison; trials and turns of a search after a change, which is short."""
_FINALISTS = 3
"""So many of the best are held against each other."""
_HOPELESS = 1.5
"""Times of the best plan from which on exact training is not held against it."""


@dataclass(frozen=True, kw_only=True)
class PlanSearch:
    """One search, on all ranks; the first rank decides."""

    comm: Comm
    auto: Auto
    trials: TrialRunner
    searches: Searches
    recalled: Recalled
    rejected: RejectedPlans
    exact: Genome
    """Torch's own exchange."""
    in_force: Trial
    """Plan before the search, with its step time."""
    before: str
    """Hash of that plan, on all ranks."""
    conditions: Conditions
    quality: Quality
    anew: bool
    """Whether nothing is known of these conditions; else it is a short search."""
    resumes: bool
    """Whether it goes on where the last one has ended, and not after a change."""
    awaits_turns: bool
    """Whether it is to hold plans of earlier searches against each other, which is affordable now."""
    steps_left: Callable[[], float]
    """Steps that trials and turns may still take; the same on all ranks."""
    most_s: float
    """Time from the start of the run within which turns of the first search should end."""
    is_known: bool
    """Whether an earlier run has left its plan for these conditions, on the first rank."""
    say: Callable[[str], None]
    """Tells where the search is."""
    end_trial: Callable[[], None]
    """Goes back to torch's own exchange from a plan that has stayed in force after its trial. Collective."""

    @cached_property
    def plan_of(self) -> Callable[[Genome], SyncPlan]:
        """Function that returns the plan of a genome, with schedules for the network."""
        known = self.conditions
        return partial(scheduled_plan, workload=known.workload, topology=known.topology, overheads=known.overheads)

    @cached_property
    def asking(self) -> Asking:
        """Search of the first rank, which has predicted what it asks for first."""
        return Asking(self._search() if self.comm.rank == 0 else None)

    def weigh(self, pays: Callable[[float], bool]) -> None:
        """Drop the search where it does not pay. A known plan comes first, whatever is predicted.

        Args:
            pays: Says on the first rank whether to try any, told how many times sooner than torch's own exchange the
                first is predicted to get to the same accuracy.

        """
        wish, found = self.asking.wish, self.asking.found
        if not self.is_known and (wish or found):  # one of them, on the first rank, unless predictions have failed
            first = self.in_force.genes if wish is None else wish[0]
            if not pays(self.searches.gain(first, self.in_force, self._own_s(None), self.quality)):
                self.asking.drop()

    def is_idle(self) -> bool:
        """Say whether it would try no plan, and let none take turns. Collective."""
        return not (self.awaits_turns or share_number(self.comm, self.asking.wish is not None))

    def try_plans(self) -> Steps[SearchResult | None]:
        """Try the plans that the first rank asks for; return the result of the search there, and None elsewhere.

        The last one stays in force, on trial: it is often the one that is kept, and to leave it costs a mean of weights
        where ranks are apart.
        """
        asking, number = self.asking, 0
        while (wanted := share_request(self.comm, asking.wish, self.plan_of)) is not None:
            number += 1
            self.say(
                f"auto is still searching: trial {number} of at most {max(number, self._most_trials)} is under way."
            )
            began, began_s = self.trials.steps, self.searches.elapsed_s
            self.end_trial()
            blocks_s, why = yield from self.trials.time_plan(*wanted, stays=True)
            made = self.trials.steps - began
            asking.spared += made if wanted[0].hash == self.before else 0
            steps_s = made * statistics.median(blocks_s or [0.0])
            self.searches.lost_s.append(self.searches.elapsed_s - began_s - steps_s)
            genes = asking.wish[0] if asking.wish else None
            if why:
                self.rejected.note_failure(UNDONE, why, wanted[0], {wanted[0].hash: genes} if genes else {})
            if genes:
                status = "failed" if why else "aborted" if len(blocks_s) == 1 else "ok"
                asking.tell(Trial(genes=genes, steps_s=tuple(blocks_s), status=status, reason=why))
        return asking.found

    def holds(self, found: SearchResult | None) -> bool:
        """Say whether the known plan took the time that it took then; on other ranks than the first always."""
        if self.comm.rank or self.recalled.experience is None:
            return True
        kept, trials = self.recalled.experience.kept, () if found is None or found.stopped == CHANGED else found.trials
        return any(trial.genes == kept and trial.status == "ok" for trial in trials)

    def decide(self, found: SearchResult | None, exact_name: str) -> Steps[PlanDecision]:
        """Hold the best of a search against each other, and against exact training where that is not hopeless.

        It is hopeless if its time, known or predicted, is too long. That time does not count if a trial was much faster
        than predicted. Without it, plans take turns once that is affordable: until then the best in its trial is kept.

        Args:
            found: Result of the search, on the first rank.
            exact_name: Of torch's own exchange.

        """
        most = _FINALISTS if self.awaits_turns or (self.anew and not self.is_known) else 1
        exact, best_found = self.exact.plan("auto"), [] if self.anew else [self.in_force]
        if found is not None:
            stays = None if self.awaits_turns else self._stays(found)
            best_found = select_finalists(found, stays, self.quality, most)
        shared = share_finalists(self.comm, best_found, self.quality, self.plan_of)
        known = {self.plan_of(trial.genes).hash: trial.genes for trial in best_found}
        rivals = [each for each in shared if each.plan.hash != exact.hash]
        kept = shared[0] if shared else Finalist(exact, True, 1.0, math.nan)
        searches, tried = self.searches, trial_of(self.exact, found)
        figures = [tried is not None, is_as_predicted(found, self.in_force), self._own_s(found)]
        figures += [searches.elapsed_s, searches.leaving_s, searches.switch_s, searches.spent_s]
        has_tried, is_trusted, own_s, *times_s = share_numbers(self.comm, figures)
        exact_s = own_s if is_trusted else math.nan
        if self.is_known:
            return self._decide_untimed(own_s, kept, known)
        if not rivals:
            return PlanDecision(kept, self.exact, expected_s=kept.tried_s)
        first = rivals[0]
        is_hopeless = exact_s > _HOPELESS * first.tried_s * first.ratio
        turns = _TURNS if self.anew else _AGAIN_TURNS
        budget = TurnBudget(self.trials, self.steps_left(), self.most_s, *times_s)  # in the order of its fields
        most_turns = budget.most_turns(rivals, None if is_hopeless else exact, exact_s, at_least=int(self.anew))
        is_answered = self.resumes or bool(has_tried and not self.anew)
        is_settled = (is_answered and not self.awaits_turns) or (is_hopeless and len(rivals) == 1)
        if is_settled or most_turns < 1 or (is_hopeless and budget.affordable_s(rivals, turns) > budget.elapsed_s):
            due_s = budget.due_s(rivals, _AGAIN_TURNS) if is_hopeless and not is_settled else math.inf
            return replace(self._decide_untimed(own_s, first, known), due_s=due_s)
        others, base_s = ("", exact_s) if is_hopeless else (f" with {exact_name}", math.nan)
        self.say(f"auto is still searching: the best {len(rivals)} take turns{others}.")
        self.end_trial()
        plans, ratios = [each.plan for each in rivals], [each.ratio for each in rivals]
        compared = yield from self.trials.compare(plans, ratios, turns, base_s, most_turns)
        for k, why in compared.failed.items():
            self.rejected.note_failure(UNDONE, why, rivals[k].plan, known)
        if not compared.gains:
            return PlanDecision(kept, self.exact)
        best, adopted = rivals[compared.best], compared.is_faster
        # Of several plans, since one alone may have had to wait for a core in its trial.
        since = [r.tried_s / s for r, s in zip(rivals, compared.plans_s, strict=True) if not math.isnan(s)]
        now_s = compared.plans_s[compared.best] if adopted else compared.exact_s
        expected_s = statistics.median(since) * now_s if since else math.nan
        if since and max(since) > UNEQUAL * min(since):  # turns were on two networks: the first windows find it out
            expected_s = best.tried_s
        genes = known.get(best.plan.hash, self.exact) if adopted else self.exact
        return PlanDecision(best, genes, compared.gains, adopted, expected_s, predicted=is_hopeless)

    def keep(self, found: SearchResult, kept: Genome, expected_s: float = math.nan, *, complete: bool = True) -> None:
        """Write what the search has found, on the first rank.

        Args:
            found: Its trials.
            kept: Plan that is in force, or the best so far.
            expected_s: Step time of it, where it has no trial.
            complete: Whether the search has ended.

        """
        times_s = {trial.genes: trial.step_s for trial in found.trials if trial.status == "ok"}
        fitted = self.searches.coefficients
        kept_s = times_s.get(kept, expected_s)
        self.recalled.write(found, kept, kept_s, self.conditions, fitted, self.quality, complete=complete)

    def explain(self, found: SearchResult | None, decision: PlanDecision) -> str:
        """Return the paragraph on a decision, with what was predicted and seen of each plan; the same on all ranks.

        Args:
            found: Result of the search, on the first rank.
            decision: On all ranks.

        """
        best, exact, known = decision.best, self.exact.plan("auto"), self.conditions
        told = known.workload, known.topology, best.plan, exact, best.ratio, decision.gains
        why = explain(*told, adopted=decision.adopted, found=found, predicted=decision.predicted)
        tried = [plans_text(found.trials, found.predicted_s)] if found is not None and found.predicted_s else []
        lines = [" ".join(filter(None, (why, self.quality.sentence))), *tried, *self.recalled.notes]
        return broadcast_text("\n".join(lines), self.comm)

    def _stays(self, found: SearchResult) -> Trial:
        """Return the plan that is left only for a better one: that of an earlier run, or what is in force."""
        before = self.recalled.experience if self.is_known else None
        genes = self.in_force.genes if before is None else before.kept
        return trial_of(genes, found) or self.in_force

    def _decide_untimed(self, exact_s: float, best: Finalist, known: Mapping[str, Genome]) -> PlanDecision:
        """Keep the best, or exact training if it takes less, whose time is known, or predicted, without a turn."""
        if best.plan.hash == self.exact.plan("auto").hash:
            return PlanDecision(best, self.exact, expected_s=best.tried_s)
        gains = (exact_s / (best.tried_s * best.ratio),)
        if LEAVE_ABOVE * gains[0] < 1 and not self.is_known:
            return PlanDecision(best, self.exact, gains, False, exact_s, predicted=True)
        return PlanDecision(best, known.get(best.plan.hash, self.exact), gains, True, best.tried_s, predicted=True)

    def _own_s(self, found: SearchResult | None) -> float:
        """Return the step time of torch's own exchange, seen or predicted, on the first rank."""
        tried = trial_of(self.exact, found)
        if self.in_force.genes == self.exact:
            return self.in_force.step_s
        return self.searches.step_s(self.exact) if tried is None else tried.step_s

    @property
    def _most_trials(self) -> int:
        return self.auto.max_trials if self.anew else min(_AGAIN_TRIALS, self.auto.max_trials)

    def _search(self) -> Generator[tuple[Genome, float], Trial, SearchResult]:
        workload, topology, before = self.conditions.workload, self.conditions.topology, self.recalled.experience
        kept = before if self.is_known else None
        overheads = self.conditions.overheads if kept is None else kept.learned_overheads
        seeds = measured_genomes(self.quality.optimizer, self.quality.scale)
        seeds |= {"in force": self.in_force.genes, "exact": self.exact}
        if kept is None and before is not None:
            seeds["kept elsewhere"] = before.kept
        start = SearchStart(
            first=None if kept is None else kept.kept,
            expected_s=0.0 if kept is None else kept.kept_s,
            reference=None if self.anew or self.resumes else self.exact,
            fits=lambda genes: self.trials.num_steps(self.plan_of(genes)) <= self.steps_left(),
            steps=lambda: self.trials.steps,
            tell=lambda found: self.keep(found, found.best, complete=False),
        )
        space = Space(workload, topology, self.quality)
        features = CostFeatures(workload, topology, overheads, workload.rank_factors)
        given = space, features, seeds, self.in_force, self._most_trials, start
        return (yield from self.searches.search(*given, resumes=self.resumes))
