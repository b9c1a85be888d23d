"""Choice of a plan for a script's model, by "auto"."""

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed import ProcessGroup

from pliant.attachment.verdict import RunOptions
from pliant.autotune.options import Auto
from pliant.autotune.recall import Recalled, recall
from pliant.autotune.start import resume_tuning, start_tuning
from pliant.autotune.tuner import AutoTuner
from pliant.comm.base import Comm
from pliant.comm.transport import comm_by_host
from pliant.engine.plan_resolution import torchs_own
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.engine.run_start import start_run
from pliant.engine.sharded_model import num_shards_of
from pliant.profiling.observe import Observation
from pliant.spec import SyncPlan

__all__ = ["Chosen", "PlanChoice", "auto_of", "recall_for"]

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


def auto_of(options: RunOptions) -> Auto:
    """Return the options of "auto" for a script."""
    return Auto(
        quality=options.budget,
        unmeasured=options.unmeasured,
        max_trials=_MAX_TRIALS,
        num_steps=_FIRST_STEPS,
        least_gain=_LEAST_GAIN,
        equal_weights=True,
        experience=None if options.experience == "none" else options.experience,
        watch=False,  # the verdict is of one plan; its quality is monitored all the same
    )


def recall_for(held: RelaxedModel, auto: Auto, group: ProcessGroup) -> Recalled:
    """Look for what earlier runs have left of this training, before one begins. Collective over `group`.

    What is known without the step time of torch's own exchange is a start only, since a verdict needs that.
    """
    if auto.experience is None:
        return Recalled()
    comm = comm_by_host(group, _TIMEOUT_S, next(iter(held.parameters.values())).device)
    try:
        recalled = recall(held.called, held.optimizer, auto, comm, num_shards_of(held.sharded))
    finally:
        comm.close()
    if recalled.known is not None and not recalled.known.base_s:
        recalled.known = None
    return recalled


class PlanChoice:
    """A choice that is under way while the script trains, begun between two steps. Collective.

    Args:
        held: The model and its optimizers.
        auto: Options, from `auto_of`.
        observation: Of plain steps; None to begin from conditions that an earlier run has left.
        recalled: What earlier runs have left.

    Raises:
        ValueError: The model, its optimizer or its backend does not fit.

    """

    def __init__(self, held: RelaxedModel, auto: Auto, observation: Observation | None, recalled: Recalled) -> None:
        def attach(run: Run, comm: Comm) -> None:
            # A script that goes on from a checkpoint has an optimizer that has counted steps before.
            own = replace(auto, num_steps=run.steps + auto.num_steps)
            if observation is None:
                self._tuner = run.tuner = resume_tuning(run, own, comm, recalled)
            else:
                self._tuner = run.tuner = start_tuning(run, own, comm, observation, recalled)

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

    @property
    def base_s(self) -> float:
        """Step time of torch's own exchange: watched, or what an earlier run has left while that holds."""
        return self._tuner.watched.step_s

    @property
    def is_remembered(self) -> bool:
        """Whether that is an earlier run's."""
        return self._tuner.is_resumed

    def chosen(self) -> Chosen | None:
        """Return the outcome; None as long as there is none."""
        choice, prospects = self._tuner.choice, self._tuner.prospects
        if choice is None:
            return None
        why, pays = "", choice.adopted and statistics.median(choice.gains) >= _LEAST_GAIN
        if not pays:
            of = statistics.median(choice.gains) if choice.gains else prospects.gain if prospects is not None else 1.0
            how = "was" if choice.gains else "is predicted to be"
            why = f"the best other exchange {how} {of:.2f} times as fast to the same accuracy"
            if not choice.num_tried and of >= _LEAST_GAIN:
                why += f", which saves less than its trials cost in the first {_FIRST_STEPS} steps"
        return Chosen(
            plan=choice.plan if pays else None,
            steps_ratio=choice.steps_ratio if pays else 1.0,
            why=why,
            frontier=[] if prospects is None else [point.as_row() for point in prospects.points],
            frontier_text="" if prospects is None else prospects.text,
        )

    def close(self) -> None:
        """End the run, so that plain training goes on. Collective."""
        self.run.close()

    _tuner: AutoTuner
