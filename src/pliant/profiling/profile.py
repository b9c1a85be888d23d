"""Recording of the next steps of a run as timelines, one for each rank, for `pliant report`."""

import functools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from pliant.engine.attachments import AttachedProfile
from pliant.engine.device_timer import DeviceTimer
from pliant.engine.run import Run
from pliant.engine.tracer import TaskRecord, Tracer, TransferRecord
from pliant.profiling.step_timer import tensors_in
from pliant.spec import Event, Timeline, save
from pliant.spec.files import require_places

__all__ = ["Profile", "profile"]

_SHORTEST_WAIT_S = 20e-6
"""Shortest wait that is recorded: a shorter one is the cost of asking."""


class Profile(AttachedProfile):
    """Result of `profile`: a context manager around ordinary steps. Its hooks are removed after the last one."""

    def __init__(self, run: Run, folder: Path | None, *, steps: int, warmup_steps: int) -> None:
        self._run, self._file = run, None if folder is None else folder / f"rank{run.tracer.comm.rank}.json"
        require_places(self._file)
        self._first, self._steps = warmup_steps, steps
        self._taken = 0
        self._forward_from: Any = None
        self._loss_from: Any = None
        """Where the last forward pass ended."""
        self._backward_from: Any = None
        self._ready: Any = None
        """When the last gradient was complete."""
        self._optimizer_from: Any = None
        self._noted = 0  # events there were before the optimizer's step
        self._origin: Any = None
        self._began_unix_s = 0.0
        self._over = False
        self._timeline: Timeline | None = None
        parameters = [p for p in run.model.parameters() if p.requires_grad]
        self._hooks: list[Any] = [
            run.model.register_forward_pre_hook(lambda *_: self._before_forward()),
            run.model.register_forward_hook(lambda _, __, output: self._after_forward(output)),
            run.optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            run.optimizer.register_step_post_hook(lambda *_: self._after_step()),
            *(p.register_post_accumulate_grad_hook(self._on_ready) for p in parameters),
        ]
        if warmup_steps == 0:
            self._begin()

    @property
    def open(self) -> bool:
        """Whether steps are still to come."""
        return not self._over

    @property
    def done(self) -> bool:
        """Whether all steps were seen, and written down."""
        return self._timeline is not None

    def timeline(self) -> Timeline:
        """Return what this rank did.

        Raises:
            ValueError: Not all steps were made yet, or the recording ended before the first of them.

        """
        if self._timeline is None:
            raise ValueError(
                f"the recording is of {self._steps} steps after {self._first}, but {self._taken} were made; go on "
                "while open is True, or end() it for what there is."
            )
        return self._timeline

    def end(self) -> None:
        """End now, and write down the whole steps there are, if any; a second call does nothing.

        The hooks go with the next forward pass: torch walks through the optimizer's while it calls them, and that is
        where plans may be switched.
        """
        if self._over:
            return
        self._over, self._run.tracer.on = True, False
        if self._taken > self._first:
            self._write()

    def close(self) -> None:
        """End now, and remove the hooks at once: not within a step."""
        self.end()
        self._remove_hooks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # - The moments

    def _begin(self) -> None:
        tracer = self._run.tracer
        tracer.start(self._run.steps)
        self._origin, self._began_unix_s = tracer.now(), time.time()

    def _before_forward(self) -> None:
        if self._over:
            self._remove_hooks()
        elif torch.is_grad_enabled():
            self._note_backward()
            self._forward_from = self._run.tracer.now()

    def _after_forward(self, output: Any) -> None:
        tracer = self._run.tracer
        if not (tracer.on and torch.is_grad_enabled()):
            return
        tracer.note("forward", "forward", self._forward_from)
        self._loss_from = tracer.now()

        def begin(_: Tensor) -> None:
            if self._backward_from is None:
                self._backward_from = tracer.now()

        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(begin)

    def _on_ready(self, _: Tensor) -> None:
        self._ready = self._run.tracer.now()

    def _note_backward(self) -> None:
        """Note the backward pass that has ended, if one has; where its start was not seen, with the loss before it."""
        tracer = self._run.tracer
        if self._ready is not None:
            name = "backward" if self._backward_from is not None else "loss and backward"
            tracer.note("backward", name, self._backward_from or self._loss_from, self._ready)
        self._backward_from = self._ready = None

    def _before_step(self) -> None:
        self._note_backward()
        self._optimizer_from, self._noted = self._run.tracer.now(), len(self._run.tracer.events)

    def _after_step(self) -> None:
        """Comes after the run's own hook, in which weights are exchanged: the first wait there ends the optimizer."""
        tracer = self._run.tracer
        if self._over:
            return
        waits = [note for note in tracer.events[self._noted :] if note.kind == "wait"]
        tracer.note("optimize", "optimize", self._optimizer_from, waits[0].start if waits else None)
        self._taken += 1
        tracer.step = self._run.steps
        if self._taken == self._first:
            self._begin()
        elif self._taken == self._first + self._steps:
            self.end()

    def _write(self) -> None:
        tracer = self._run.tracer
        tracer.clock.settle()
        events = (event for event in _events(tracer, self._origin) if event.step < tracer.step)
        self._timeline = Timeline(
            events=tuple(sorted(events, key=lambda event: event.end_s)),
            plan=self._run.plan.hash,
            num_ranks=tracer.comm.size,
            began_unix_s=self._began_unix_s,
            provenance=self._provenance(),
        )
        if self._file is not None:
            save(self._timeline, self._file)

    def _provenance(self) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        name = self._run.plan.name or "a plan without a name"
        return f"pliant.profile; {now}; torch {torch.__version__}; {self._taken - self._first} steps of {name}"

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def profile(run: Run, folder: str | Path | None = None, *, steps: int = 10, warmup_steps: int = 3) -> Profile:
    """Write down what a rank does in its next steps, when, and how many bytes that moves: for `pliant report`.

    The steps are ordinary ones: hooks take times, and nothing is communicated for it. After warmup_steps, `steps` are
    noted; then the timeline is written to ``folder/rank0.json`` (by rank 1 to ``rank1.json``, and so on) at once, and
    the hooks go by themselves. A run that is closed, or that switches its plan, ends the recording with the steps there
    are. Events are forward and backward passes, waits for exchanges, the optimizer's step, and for every bucket its
    exchange, its messages, and the coding beside them. Coding is 'encode' until the last message is on its way (sums
    included), 'decode' from then on. On CUDA times are those of the streams.

    Args:
        run: What `relax` returned.
        folder: Where each rank writes its timeline; None to ask for it by `Profile.timeline` instead.
        steps: Steps to note.
        warmup_steps: Steps before those.

    Raises:
        ValueError: A number of steps is not possible, or the folder takes no file.
        RuntimeError: The run is being recorded already.

    >>> from pliant import relax, run_world
    >>> def train(context):
    ...     model = torch.nn.Linear(4, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     with relax(model, optimizer, "bytegrad", group=context.process_group) as run:
    ...         with profile(run, steps=1, warmup_steps=0) as recording:
    ...             run.model(torch.ones(2, 4)).sum().backward()
    ...             optimizer.step()
    ...         return recording.timeline().num_ranks
    >>> run_world(2, train)
    [2, 2]

    """
    if steps < 1 or warmup_steps < 0:
        raise ValueError(
            f"profile() got {steps} steps and {warmup_steps} warmup_steps; steps must be at least 1, warmup_steps 0."
        )
    if run.profile.open:
        raise RuntimeError("this run is being recorded already; close() that recording, or wait until it is done.")
    recording = Profile(run, None if folder is None else Path(folder), steps=steps, warmup_steps=warmup_steps)
    run.profile = recording
    return recording


def _events(tracer: Tracer, origin: Any) -> Iterator[Event]:
    """Turn marks into times, and the gaps between a task's messages into events of coding."""
    event = functools.partial(_event, tracer, origin)
    for note in tracer.events:
        found = event(note.kind, note.name, note.step, note.start, note.end)
        if note.kind != "wait" or found.end_s - found.start_s >= _SHORTEST_WAIT_S:
            yield found
    for message in tracer.untasked:
        yield event("communicate", message.name, message.step, message.start, message.end, message)
    for task in list(tracer.tasks):
        yield event("exchange", task.name, task.step, task.start, task.end)
        for message in task.messages:
            yield event("communicate", task.name, task.step, message.start, message.end, message)
        for kind, start, end in _coding(task, tracer.clock):
            yield event(kind, task.name, task.step, start, end)


def _event(
    tracer: Tracer,
    origin: Any,
    kind: str,
    name: str,
    step: int,
    start: Any,
    end: Any,
    message: TransferRecord | None = None,
) -> Event:
    return Event(
        rank=tracer.comm.rank,
        step=step,
        kind=kind,  # pyright: ignore[reportArgumentType]
        name=name,
        start_s=tracer.clock.seconds(origin, start),
        end_s=tracer.clock.seconds(origin, end),
        sent_bytes=message.sent_bytes if message is not None else 0,
        received_bytes=message.received_bytes if message is not None else 0,
    )


def _coding(task: TaskRecord, clock: DeviceTimer) -> Iterator[tuple[str, Any, Any]]:
    """Return (kind, start, end) of what is left of a task when its waits for messages are taken out."""
    last_posting = max((clock.seconds(task.start, m.start) for m in task.messages), default=0.0)
    now = task.start
    for wait_from, end in [(m.wait_from, m.end) for m in task.messages] + [(task.end, task.end)]:
        if clock.seconds(now, wait_from) > 0:
            yield "encode" if clock.seconds(task.start, now) < last_posting else "decode", now, wait_from
        now = end
