"""First steps of a run, and what they say of the model and of its links."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pliant.autotune.coordination import holds_on_all, slowest_s
from pliant.autotune.recall import Conditions
from pliant.autotune.trials import Steps
from pliant.autotune.tunable_run import TunableRun
from pliant.comm.base import Comm
from pliant.engine.outputs import OutputWatch
from pliant.engine.relaxed_model import module_of, strip_wrappers
from pliant.network.first_look import LinkView, look_at_links, own_rate
from pliant.profiling.observe import Observation, observe
from pliant.spec import Workload

__all__ = ["WATCHED_STEPS", "WatchedSteps", "observe_run", "resume_steps", "watch_first_steps"]

WATCHED_STEPS = 2
"""Steps at the beginning whose times are taken, after one that is not."""


@dataclass(frozen=True, kw_only=True)
class WatchedSteps:
    """Findings of the first steps; the same on all ranks, but for `busy_s`."""

    workload: Workload
    step_s: float
    """Of the slowest rank."""
    finds_loss: bool
    """Whether the loss was recognized or told on all ranks, so that its curvature can be estimated."""
    bytes_per_s: float
    """Rate at which the steps' own messages went; 0 if they were too small to tell."""
    busy_s: float
    """Time of one of this rank's messages."""

    def look_at_links(self, comm: Comm, message_s: float, hosts: Sequence[Sequence[int]] | None) -> LinkView | None:
        """Return hosts and links by the steps' own messages and by streams; None on one host. Collective."""
        return look_at_links(comm, self.bytes_per_s, self.busy_s, message_s, comm.connections, hosts)


def observe_run(run: TunableRun, num_steps: int) -> Observation:
    """Return an observation of so many of the run's next steps, after one that is not timed."""
    return observe(run.model, run.optimizer, steps=num_steps, warmup_steps=1, gradient_steps=0)


def resume_steps(run: TunableRun, known: Conditions, comm: Comm) -> Steps[WatchedSteps]:
    """Let one step be made, which tells whether the loss is found; all else is what an earlier run has left."""
    outputs = _outputs_of(run, lambda: True)
    yield
    return WatchedSteps(
        workload=known.workload,
        step_s=known.base_s,
        finds_loss=_finds_loss(run, outputs, comm),
        bytes_per_s=known.bytes_per_s,
        busy_s=0.0,
    )


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
    outputs = _outputs_of(run, lambda: not observation.done)
    first = None
    while True:
        yield
        observation.end_step()  # whose own hook comes after the run's
        if observation.done:  # its hooks go by themselves
            break
        first = run.stats() if first is None else first
    finds_loss = _finds_loss(run, outputs, comm)
    if not holds_on_all(comm, not observation.blind):
        keep_exact()
        while True:
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
        step_s=slowest_s(comm, [observation.step_s])[0],
        finds_loss=finds_loss,
        bytes_per_s=own_rate(comm, sent_bytes, busy_s),
        busy_s=busy_s / max(1, messages),
    )


def _outputs_of(run: TunableRun, wanted: Callable[[], bool]) -> OutputWatch:
    ddp, module = strip_wrappers(run.model), module_of(run.model)
    return OutputWatch(None if ddp is module else ddp, module, wanted)


def _finds_loss(run: TunableRun, outputs: OutputWatch, comm: Comm) -> bool:
    """Say whether the loss was recognized or told on all ranks. Collective."""
    outputs.close()
    return holds_on_all(comm, run.curvature.is_told or outputs.loss()[0] is not None)
