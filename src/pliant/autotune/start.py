"""Start of a tuner on a run."""

from pliant.autotune.options import Auto
from pliant.autotune.trials import TunableRun
from pliant.autotune.tuner import AutoTuner
from pliant.comm.base import Comm, duplicate
from pliant.network.rank_places import require_gloo
from pliant.profiling.observe import Observation, observe

__all__ = ["WATCHED_STEPS", "start_tuning"]

WATCHED_STEPS = 5
"""Steps at the beginning whose times are taken, after two that are not."""


def start_tuning(run: TunableRun, auto: Auto, comm: Comm, observation: Observation | None = None) -> AutoTuner:
    """Attach a tuner, which chooses and monitors the run's plan from here on. Collective.

    Args:
        run: The run, under DDP's own exchange.
        auto: Options.
        comm: Of the run.
        observation: Of steps that were made before the run began; None to observe the next ones.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured.

    """
    require_gloo(comm)
    own = duplicate(comm)
    watched = observation or observe(run.model, run.optimizer, steps=WATCHED_STEPS, gradient_steps=0)
    return AutoTuner(run, auto, watched, own)
