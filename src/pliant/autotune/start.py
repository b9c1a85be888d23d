"""Start of a tuner on a run."""

from pliant.autotune.options import Auto
from pliant.autotune.recall import recall
from pliant.autotune.trials import TunableRun
from pliant.autotune.tuner import AutoTuner
from pliant.comm.base import Comm, duplicate
from pliant.network.rank_places import require_gloo
from pliant.profiling.observe import Observation, observe

__all__ = ["KNOWN_STEPS", "WATCHED_STEPS", "start_tuning"]

WATCHED_STEPS, KNOWN_STEPS = 2, 1
"""Steps at the beginning whose times are taken, after one that is not; where an earlier run has left experience."""


def start_tuning(run: TunableRun, auto: Auto, comm: Comm, observation: Observation | None = None) -> AutoTuner:
    """Attach a tuner, which chooses and monitors the run's plan from here on. Collective.

    Args:
        run: The run, under DDP's own exchange, or the same in 16 bits.
        auto: Options.
        comm: Of the run.
        observation: Of steps that were made before the run began; None to observe the next ones.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured.

    """
    require_gloo(comm)
    own = duplicate(comm)
    recalled = recall(run, auto, own)
    steps = WATCHED_STEPS if recalled.links is None else KNOWN_STEPS
    watched = observation or observe(run.model, run.optimizer, steps=steps, warmup_steps=1, gradient_steps=0)
    return AutoTuner(run, auto, watched, own, recalled)
