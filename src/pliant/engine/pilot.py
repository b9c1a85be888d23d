"""What "auto" does: the first steps of a training find out which plan it goes on with, and later ones watch over it."""

import json
import logging
import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pliant.comm.base import Comm, another
from pliant.comm.sharing import share_text
from pliant.engine.auto import Auto
from pliant.engine.bounds import Verdict
from pliant.engine.cruise import Cruise, Landed
from pliant.engine.explain import explain
from pliant.engine.observe import Observation, observe
from pliant.engine.refused import Wary, as_strong
from pliant.engine.tryout import Flown, Steps, TryOut
from pliant.network.probing import probe, require_gloo
from pliant.planner import (
    BUILDERS,
    FAMILIES,
    Advice,
    Found,
    Gene,
    Genes,
    Limits,
    Quality,
    Space,
    Trial,
    advise,
    searching,
)
from pliant.planner.predictor import Experience, Predictor
from pliant.simulator import Physics
from pliant.spec import SyncPlan, Topology, Workload, from_json, to_json

__all__ = ["Pilot", "take_off"]

_log = logging.getLogger("pliant")

_EXACT = Genes(Gene("exact", {"bits": 32}))
"""DDP's own exchange, in its own buckets."""
_WATCHED = 5
"""Steps at the beginning whose times are taken, after two that are not."""
_ENOUGH_S, _TURNS = 0.6, 3
_BATCH, _SAMPLES = 4, 100
_AGAIN_TRIALS, _AGAIN_S, _AGAIN_TURNS = 2, 0.06, 2
"""Of a search after a change: the best predicted, in as few steps as can be timed. With the windows that see the
change, it is answered within 50 steps."""
_FINALISTS, _NEAR = 3, 1.25
"""So many of the best are held against exact training, and each other, if they took at most so many times the least."""
_LEAVE_ABOVE = 1.03
"""After a change, the plan in force is left only for one that took so many times less: near ties do not take turns."""
_CELLS, _TRUSTED = 3, 4.0
"""Searches that the next one learns from, and how many times a coefficient may be what it was given as."""
_HOLD_STEPS = 50
"""After a search, nothing is searched for so many steps; twice as many each time that it kept the plan, or that the
next change came soon."""


class _Finalist(NamedTuple):
    """A plan to be held against exact training."""

    plan: SyncPlan
    is_exact: bool
    ratio: float
    """How many times the steps of exact training it needs."""
    tried_s: float
    """What a step took in its trial."""


class Pilot:
    """Chooses the plan of a run while it trains. All ranks have one; the first decides, and tells the others.

    Args:
        run: Whose plan it is.
        auto: What it may do.
        observation: Of the run's first steps.
        comm: Over a group that nobody else uses.

    """

    def __init__(self, run: Flown, auto: Auto, observation: Observation, comm: Comm) -> None:
        self._run, self._auto, self._observation, self._comm = run, auto, observation, comm
        self.explanation = "auto is still watching the first steps."
        """Which plan was chosen and why, or was given up and why, in one paragraph; the same on all ranks."""
        self.advice: Advice | None = None
        """What the plan in force asks of the optimizer; `pliant.planner.apply` does it. None until one was chosen."""
        self._genes = _EXACT
        """Of the plan in force, on the first rank."""
        self._is_exact = True
        self._refused: set[Gene] = set()
        self._cells: list[tuple[Physics, Sequence[Trial]]] = []
        """What the last searches have tried, on the first rank."""
        self._flight = self._fly()
        next(self._flight)

    def after_step(self) -> None:
        """Go on; a plan may be switched in it. Collective."""
        next(self._flight)

    def close(self) -> None:
        """Stop, whatever it was about to do."""
        self._flight.close()
        self._observation.close()
        self._comm.close()

    def _fly(self) -> Steps[None]:
        while not self._observation.done:  # its hooks go by themselves
            yield
        workload = self._observation.workload()
        hold_steps, landed = _HOLD_STEPS, None
        while True:
            before = self._run.plan.hash
            topology = probe(self._comm, budget_s=self._auto.probe_s)
            expected_s = yield from self._choose(workload, topology, landed)
            if landed is not None:
                restless = self._run.plan.hash == before or landed.steps < 2 * hold_steps
                hold_steps = 2 * hold_steps if restless else _HOLD_STEPS
            landed = yield from self._cruise(hold_steps, expected_s)
            if landed.at_once:
                self._cells = self._cells[:-1]
            while landed.crossed is not None:
                self._give_up(landed.crossed, workload)
                landed = yield from self._cruise(hold_steps)
            if self._comm.rank == 0:
                took = f"{1e3 * landed.step_s:.4g} ms instead of {1e3 * landed.usual_s:.4g} ms"
                _log.info("auto searches again after step %d: steps took %s.", self._run.steps, took)

    def _cruise(self, hold_steps: int, expected_s: float = math.nan) -> Steps[Landed]:
        bounds = None if self._is_exact else self._auto.bounds
        cruise = Cruise(self._run, self._comm, bounds=bounds, watches_times=self._auto.watch)
        return (yield from cruise.flown(hold_steps, expected_s))

    # - Choosing

    def _choose(self, workload: Workload, topology: Topology, landed: Landed | None) -> Steps[float]:
        """Try plans, hold the best against exact training, turn about, and keep the faster.

        Returns:
            What a step takes on the network on which the best was tried, which may have changed since; NaN: not known.

        """
        quality = Wary(budget=self._auto.quality, refused=frozenset(self._refused))
        anew = landed is None or landed.at_once
        tryout = TryOut(self._run, self._comm, _ENOUGH_S if anew else _AGAIN_S)
        in_force = Trial(genes=self._genes, steps_s=(landed.step_s,)) if landed is not None else None
        num_trials = self._auto.max_trials if anew else min(_AGAIN_TRIALS, self._auto.max_trials)
        asking = self._search(workload, topology, quality, in_force, num_trials) if self._comm.rank == 0 else None
        asked, found = (next(asking), None) if asking is not None else (None, None)
        while (told := self._tell(asked)) is not None:
            blocks_s, reason = yield from tryout.tried(*told)
            if asking is None or asked is None:
                continue
            status = "failed" if reason else "aborted" if len(blocks_s) == 1 else "ok"
            try:
                asked = asking.send(Trial(genes=asked[0], steps_s=tuple(blocks_s), status=status, reason=reason))
            except StopIteration as end:
                asked, found = None, end.value
            except RuntimeError as error:  # not one could be in force
                _log.warning("auto keeps DDP's own exchange: %s.", error)
                asked = None
        finalists = _finalists(found, in_force, quality, _FINALISTS if anew else 1) if found is not None else []
        shared = self._share(finalists, quality)
        exact = _EXACT.plan("auto")
        rivals = [each for each in shared if each.plan.hash != exact.hash]
        if rivals:
            turns = _TURNS if anew else _AGAIN_TURNS
            compared = yield from tryout.compared([r.plan for r in rivals], [r.ratio for r in rivals], exact, turns)
            best, gains, adopted = rivals[compared.best], compared.gains, compared.pays
            # Of several plans, since one alone may have had to wait for a core in its trial.
            since = statistics.median(r.tried_s / now_s for r, now_s in zip(rivals, compared.plans_s, strict=True))
            expected_s = since * (compared.plans_s[compared.best] if adopted else compared.exact_s)
        else:
            best = shared[0] if shared else _Finalist(exact, True, 1.0, math.nan)
            gains, adopted, expected_s = (1.0,), False, best.tried_s
        chosen = best.plan if adopted else exact
        self._run.switch(chosen)
        self._is_exact = best.is_exact or not adopted
        self._genes = next((t.genes for t in finalists if t.genes.plan().hash == chosen.hash), _EXACT)
        why = explain(workload, topology, best.plan, exact, best.ratio, gains, adopted=adopted, found=found)
        self.explanation = f"{share_text(why, self._comm)}\n{self._advise(workload)}"
        return expected_s

    def _advise(self, workload: Workload) -> str:
        """Say what the plan in force asks of the optimizer; the same on all ranks."""
        ranks = self._comm.size
        self.advice = advise(
            workload,
            ranks,
            self._run.plan,
            optimizer=type(self._run.optimizer).__name__,
            tuned_for=(self._auto.tuned_for_ranks or ranks) * workload.batch_size,
        )
        return self.advice.paragraph

    def _search(
        self, workload: Workload, topology: Topology, quality: Quality, in_force: Trial | None, num_trials: int
    ) -> Generator[tuple[Genes, float], Trial, Found]:
        space = Space(workload, topology, quality)
        limits = Limits(
            max_trials=num_trials,
            max_seconds=self._auto.max_seconds,
            batch=_BATCH,
            num_candidates=_SAMPLES,
            seeds={"in force": self._genes, "exact": _EXACT, **BUILDERS},
            num_drawn=_SAMPLES,
            num_seeds=min(_BATCH, num_trials),
            known=[in_force] if in_force is not None else [],
            seed=self._auto.seed,
        )
        physics = Physics(workload, topology, slowdown=workload.rank_factors)
        asking = searching(space, Predictor(physics, self._auto.seed, _learned(self._cells)), limits)
        found = yield from asking
        self._cells = [*self._cells[1 - _CELLS :], (physics, found.trials)]
        return found

    def _tell(self, asked: tuple[Genes, float] | None) -> tuple[SyncPlan, float] | None:
        """Share what the first rank wants to have tried: a plan, and the step time above which it is given up."""
        text = "" if asked is None else json.dumps([to_json(asked[0].plan()), min(asked[1], 1e9)])
        text = share_text(text, self._comm)
        if not text:
            return None
        plan, limit_s = json.loads(text)
        return from_json(SyncPlan, plan), limit_s

    def _share(self, finalists: Sequence[Trial], quality: Quality) -> list[_Finalist]:
        """Share the first rank's best plans."""
        mine = [
            (
                to_json(trial.genes.plan("auto")),
                all(FAMILIES[gene.family].exact for gene in trial.genes.genes),
                quality.factor(trial.genes),
                trial.step_s,
            )
            for trial in finalists
        ]
        return [
            _Finalist(from_json(SyncPlan, text), *figures)
            for text, *figures in json.loads(share_text(json.dumps(mine), self._comm))
        ]

    # - Giving up

    def _give_up(self, verdict: Verdict, workload: Workload) -> None:
        """Go back to exact training, for what was seen on any rank, and refuse what did not do as expected."""
        lossy = {gene for gene in self._genes.genes if not FAMILIES[gene.family].exact}
        self._refused.update(*(as_strong(gene) for gene in lossy))
        why = (
            f"After step {self._run.steps} a plan was given up for DDP's own exchange: {verdict.why}. What it relaxed "
            f"is not tried again in this run. It was {self._run.plan}"
        )
        # A residual beyond its bound would come down on the weights in one step; smaller ones are paid.
        self._run.switch(_EXACT.plan("auto"), pay=verdict.bound != "residual")
        self._genes, self._is_exact = _EXACT, True
        if self._comm.rank == 0:
            _log.warning(why)
        self.explanation = f"{why}\n{self._advise(workload)}\nBefore: {self.explanation}"


def _learned(cells: Sequence[tuple[Physics, Sequence[Trial]]]) -> Experience | None:
    """Return what earlier searches have taught; no coefficient far from what it is elsewhere.

    One that was fitted to nothing, such as that of a wire whose exchanges were hidden, would remain nothing.
    """
    if not cells:
        return None
    given, found = cells[0][0].coefficients, Experience.of(cells)
    return replace(found, coefficients=np.clip(found.coefficients, given / _TRUSTED, given * _TRUSTED))


def _finalists(found: Found, in_force: Trial | None, quality: Quality, most: int) -> list[Trial]:
    """Return the best of a search, best first, or what is in force if that is about as good."""
    sound = {t.genes: t for t in found.trials if t.status == "ok"}.values()
    cost_s = {t.genes: t.step_s * quality.factor(t.genes) for t in sound}
    least_s = min(cost_s.values())
    if in_force is not None and cost_s[in_force.genes] <= _LEAVE_ABOVE * least_s:
        return [in_force]
    best_first = sorted(sound, key=lambda t: cost_s[t.genes])
    return [t for t in best_first if cost_s[t.genes] <= _NEAR * least_s][:most]


def take_off(run: Flown, auto: Auto, comm: Comm) -> Pilot:
    """Let a run's plan be chosen, and watched over, from here on. Collective.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured.

    """
    require_gloo(comm)
    own = another(comm)
    return Pilot(run, auto, observe(run.model, run.optimizer, steps=_WATCHED, gradient_steps=0), own)
