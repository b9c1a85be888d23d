"""Start of a tuner on a run."""

from collections.abc import Sequence

from pliant.autotune.options import Auto
from pliant.autotune.recall import Recalled, recall
from pliant.autotune.tunable_run import TunableRun
from pliant.autotune.tuner import AutoTuner
from pliant.autotune.watching import WATCHED_STEPS, observe_run
from pliant.comm.base import Comm, duplicate
from pliant.network.rank_places import ranks_of_hosts, require_gloo
from pliant.profiling.observe import Observation

__all__ = ["resume_tuning", "start_tuning"]

_KNOWN_STEPS = 1
"""Steps at the beginning whose times are taken, after one that is not, where an earlier run has left experience."""


def start_tuning(
    run: TunableRun,
    auto: Auto,
    comm: Comm,
    observation: Observation | None = None,
    recalled: Recalled | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
) -> AutoTuner:
    """Attach a tuner, which chooses and monitors the run's plan from here on. Collective.

    Args:
        run: The run, under DDP's own exchange, or the same in 16 bits.
        auto: Options.
        comm: Of the run.
        observation: Of steps that were made before the run began; None to observe the next ones.
        recalled: What earlier runs have left; None to look for it.
        hosts: Ranks of each host; those of each machine if None.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured, or ranks of a host do not follow each
            other.

    """
    _require_links(comm, hosts)
    own = duplicate(comm)
    recalled = recalled or recall(run.model, run.optimizer, auto, own, run.num_shards, hosts)
    watched = observation or observe_run(run, WATCHED_STEPS if recalled.known is None else _KNOWN_STEPS)
    return AutoTuner(run, auto, watched, own, recalled, hosts)


def resume_tuning(run: TunableRun, auto: Auto, comm: Comm, recalled: Recalled) -> AutoTuner:
    """Attach a tuner that begins from the conditions of an earlier run, and watches no step before. Collective.

    Args:
        run: The run, under torch's own exchange.
        auto: Options.
        comm: Of the run.
        recalled: What earlier runs have left, conditions that are known among it.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured, or ranks of a host do not follow each
            other.

    """
    _require_links(comm, None)
    return AutoTuner(run, auto, None, duplicate(comm), recalled)


def _require_links(comm: Comm, hosts: Sequence[Sequence[int]] | None) -> None:
    """Raise ValueError now for ranks whose links no probe could measure, and not in a step of the training."""
    require_gloo(comm)
    ranks_of_hosts(comm, hosts)
