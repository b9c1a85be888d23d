"""First steps of a run, and what they say of the model and of its links."""

from collections.abc import Callable
from dataclasses import dataclass

from pliant.autotune.coordination import holds_on_all, slowest_s
from pliant.autotune.trials import Steps, TunableRun
from pliant.comm.base import Comm
from pliant.engine.outputs import OutputWatch
from pliant.engine.relaxed_model import module_of, strip_wrappers
from pliant.network.own_rates import own_rate, topology_of_messages
from pliant.profiling.observe import Observation
from pliant.spec import Topology, Workload

__all__ = ["WatchedSteps", "watch_first_steps"]


@dataclass(frozen=True, kw_only=True)
class WatchedSteps:
    """Findings of the first steps; the same on all ranks, but for `message_s`."""

    workload: Workload
    step_s: float
    """Of the slowest rank."""
    finds_loss: bool
    """Whether the loss was recognized or told on all ranks, so that its curvature can be estimated."""
    bytes_per_s: float
    """Rate at which the steps' own messages went; 0 if they were too small to tell."""
    message_s: float
    """Time of one of this rank's messages."""

    def topology(self, comm: Comm) -> Topology | None:
        """Return hosts and links by the steps' own messages, or None where a probe is needed. Collective."""
        return topology_of_messages(comm, self.bytes_per_s, self.message_s, comm.connections)


def watch_first_steps(
    run: TunableRun, observation: Observation, comm: Comm, keep_exact: Callable[[], None]
) -> Steps[WatchedSteps]:
    """Let steps be made until the observation has seen enough of them on all ranks.

    Args:
        run: The run.
        observation: Of its first steps, or of those before it.
        comm: Over a group that nothing else uses.
        keep_exact: Called where a rank cannot see when backward begins, so that nothing will ever be chosen.

    """
    ddp, module = strip_wrappers(run.model), module_of(run.model)
    outputs = OutputWatch(None if ddp is module else ddp, module, lambda: not observation.done)
    first = None
    while True:
        yield
        if observation.done:  # its hooks go by themselves
            break
        first = run.stats() if first is None else first
    outputs.close()
    finds_loss = holds_on_all(comm, run.curvature.is_told or outputs.loss()[0] is not None)
    while not holds_on_all(comm, not observation.blind):
        keep_exact()
        yield
    workload = observation.workload(comm=comm)
    last = run.stats()
    sent_bytes, busy_s, messages = (
        (0.0, 0.0, 0)
        if first is None
        else (
            last["sent_bytes"] - first["sent_bytes"],
            last["exchange_s"] - first["exchange_s"],
            last["sent_messages"] - first["sent_messages"],
        )
    )
    return WatchedSteps(
        workload=workload,
        step_s=slowest_s(comm, observation.step_s),
        finds_loss=finds_loss,
        bytes_per_s=own_rate(comm, sent_bytes, busy_s),
        message_s=busy_s / max(1, messages),
    )
