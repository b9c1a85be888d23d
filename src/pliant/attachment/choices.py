"""PlanChoice of a plan for a script's model: by "auto", or by short trials where the model is sharded."""

import statistics
from dataclasses import dataclass, field
from typing import Any, Protocol

from pliant.attachment.sharded_trials import ShardedTrials, sharded_candidates
from pliant.autotune.options import Auto
from pliant.autotune.start import start_tuning
from pliant.autotune.tuner import AutoTuner
from pliant.comm.base import Comm, duplicate
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.engine.run_start import start_run
from pliant.profiling.observe import Observation
from pliant.spec import SyncPlan

__all__ = ["Chosen", "PlanChoice", "begin_choice"]

_LEAST_GAIN = 1.05
"""Predicted or measured speed-up below which plain DDP or FSDP2 is kept."""
_MAX_TRIALS = 8
_TIMEOUT_S = 1800.0
"""Longest time of one exchange, torch's own default: a script's first rank may evaluate while the others wait."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Outcome of a choice."""

    plan: SyncPlan | None
    """Plan that was adopted; None for plain DDP or FSDP2."""
    steps_ratio: float
    why: str
    """Clause on why plain training is kept; "" if it is not."""
    frontier: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    frontier_text: str = ""


class PlanChoice(Protocol):
    """A choice that is under way while the script trains."""

    run: Run

    @property
    def explanation(self) -> str:
        """Text on where it stands, or on what it has chosen."""
        ...

    def chosen(self) -> Chosen | None:
        """Return the outcome; None as long as there is none."""
        ...

    def close(self) -> None:
        """End the run, so that plain training goes on. Collective."""
        ...


def begin_choice(
    held: RelaxedModel, observation: Observation | None, quality: float, base_s: float, *, unmeasured: bool
) -> PlanChoice:
    """Begin to choose a plan, between two steps. Collective.

    Args:
        held: The model and its optimizers.
        observation: Of plain steps; None for a sharded model.
        quality: How many times the steps a plan may need.
        base_s: Step time of plain training.
        unmeasured: Whether to try what was measured with SGD only, with any optimizer.

    Raises:
        ValueError: The model, its optimizer or its backend does not fit.

    """
    if observation is None:
        return _ShardedChoice(held, quality, base_s, unmeasured=unmeasured)
    return _AutoChoice(held, observation, quality, base_s, unmeasured=unmeasured)


class _AutoChoice:
    """PlanChoice by "auto", for models that are whole on every rank."""

    def __init__(
        self, held: RelaxedModel, observation: Observation, quality: float, base_s: float, *, unmeasured: bool
    ) -> None:
        auto = Auto(
            quality=quality,
            unmeasured=unmeasured,
            max_trials=_MAX_TRIALS,
            # A tenth of the first 200 steps is all that a search may cost, its trials and its probe together.
            max_seconds=min(45.0, max(2.0, 12 * base_s)),
            probe_s=min(2.5, max(0.3, 4 * base_s)),
            least_gain=_LEAST_GAIN,
            equal_weights=True,
            watch=False,  # the verdict is of one plan; its quality is monitored all the same
        )

        def attach(run: Run, comm: Comm) -> None:
            self._tuner = run.tuner = start_tuning(run, auto, comm, observation)

        self.run = _start(held, attach)

    @property
    def explanation(self) -> str:
        return self._tuner.explanation

    def chosen(self) -> Chosen | None:
        choice, prospects = self._tuner.choice, self._tuner.prospects
        if choice is None:
            return None
        why = ""
        if not choice.adopted:
            of = statistics.median(choice.gains) if choice.gains else prospects.gain if prospects is not None else 1.0
            how = "was" if choice.gains else "is predicted to be"
            why = f"the best other exchange {how} {of:.2f} times as fast to the same accuracy"
        return Chosen(
            plan=choice.plan if choice.adopted else None,
            steps_ratio=choice.steps_ratio,
            why=why,
            frontier=[] if prospects is None else [point.as_row() for point in prospects.points],
            frontier_text="" if prospects is None else prospects.text,
        )

    def close(self) -> None:
        self.run.close()

    _tuner: AutoTuner


class _ShardedChoice:
    """PlanChoice by short trials of a few settings, for models that are divided among ranks."""

    def __init__(self, held: RelaxedModel, quality: float, base_s: float, *, unmeasured: bool) -> None:
        self._base_s = base_s
        candidates = sharded_candidates(held, quality, unmeasured=unmeasured)

        def attach(run: Run, comm: Comm) -> None:
            self._trials = run.tuner = ShardedTrials(run, duplicate(comm), candidates, base_s)

        self.run = _start(held, attach)

    @property
    def explanation(self) -> str:
        return self._trials.explanation

    def chosen(self) -> Chosen | None:
        best = self._trials.best
        if best is None:
            return None
        gain = self._base_s / (best.step_s * best.steps_ratio)
        pays = gain >= _LEAST_GAIN
        return Chosen(
            plan=self.run.plan if pays else None,
            steps_ratio=best.steps_ratio if pays else 1.0,
            why="" if pays else f"the best of the settings was {gain:.2f} times as fast to the same accuracy",
            frontier=self._trials.rows(),
            frontier_text=self._trials.text(),
        )

    def close(self) -> None:
        self.run.close()

    _trials: ShardedTrials


def _start(held: RelaxedModel, attach: Any) -> Run:
    return start_run(
        held,
        resolve_plan("allreduce", held.optimizer),
        timeout_s=_TIMEOUT_S,
        agreement_every=0,  # plain DDP does not compare ranks either
        nonfinite="propagate",  # as plain DDP does, and as a GradScaler expects
        attach_to=attach,
    )
