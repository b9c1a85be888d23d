"""Choice of a plan for a script's model, by "auto"."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from pliant.autotune.options import Auto
from pliant.autotune.start import start_tuning
from pliant.autotune.tuner import AutoTuner
from pliant.comm.base import Comm
from pliant.engine.plan_resolution import torchs_own
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.engine.run_start import start_run
from pliant.profiling.observe import Observation
from pliant.spec import SyncPlan

__all__ = ["Chosen", "PlanChoice"]

_LEAST_GAIN = 1.05
"""Predicted or measured speed-up below which plain DDP or FSDP2 is kept."""
_MAX_TRIALS = 8
_FIRST_STEPS = 200
"""Steps of which a search may take a tenth of the time."""
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


class PlanChoice:
    """A choice that is under way while the script trains, begun between two steps. Collective.

    Args:
        held: The model and its optimizers.
        observation: Of plain steps.
        quality: How many times the steps a plan may need.
        unmeasured: Whether to try what was measured with SGD only, with any optimizer.
        experience: File or folder of what earlier runs have found, as of `Auto`; "none" for none.

    Raises:
        ValueError: The model, its optimizer or its backend does not fit.

    """

    def __init__(
        self, held: RelaxedModel, observation: Observation, quality: float, *, unmeasured: bool, experience: str
    ) -> None:
        auto = Auto(
            quality=quality,
            unmeasured=unmeasured,
            max_trials=_MAX_TRIALS,
            num_steps=_FIRST_STEPS,
            least_gain=_LEAST_GAIN,
            equal_weights=True,
            experience=None if experience == "none" else experience,
            watch=False,  # the verdict is of one plan; its quality is monitored all the same
        )

        def attach(run: Run, comm: Comm) -> None:
            self._tuner = run.tuner = start_tuning(run, auto, comm, observation)

        self.run = start_run(
            held,
            torchs_own(held),
            timeout_s=_TIMEOUT_S,
            agreement_every=0,  # plain DDP does not compare ranks either
            nonfinite="propagate",  # as plain DDP does, and as a GradScaler expects
            attach_to=attach,
        )

    @property
    def explanation(self) -> str:
        """Text on where it stands, or on what it has chosen."""
        return self._tuner.explanation

    def chosen(self) -> Chosen | None:
        """Return the outcome; None as long as there is none."""
        choice, prospects = self._tuner.choice, self._tuner.prospects
        if choice is None:
            return None
        why = ""
        if not choice.adopted:
            of = statistics.median(choice.gains) if choice.gains else prospects.gain if prospects is not None else 1.0
            how = "was" if choice.gains else "is predicted to be"
            why = f"the best other exchange {how} {of:.2f} times as fast to the same accuracy"
            if not choice.num_tried and of >= _LEAST_GAIN:
                why += f", which saves less than its trials cost in the first {_FIRST_STEPS} steps"
        return Chosen(
            plan=choice.plan if choice.adopted else None,
            steps_ratio=choice.steps_ratio,
            why=why,
            frontier=[] if prospects is None else [point.as_row() for point in prospects.points],
            frontier_text="" if prospects is None else prospects.text,
        )

    def close(self) -> None:
        """End the run, so that plain training goes on. Collective."""
        self.run.close()

    _tuner: AutoTuner
