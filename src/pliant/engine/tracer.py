"""Tracer of a run's threads: measures waiting, and records events while a recording asks for them."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pliant.comm.recorded import RecordedComm
from pliant.engine.device_timer import DeviceTimer
from pliant.engine.shutdown import Shutdown

__all__ = ["TaskRecord", "ThreadEvent", "Tracer", "TransferRecord"]


@dataclass(frozen=True, kw_only=True)
class ThreadEvent:
    """An interval of the training thread, between two marks of the tracer's clock."""

    kind: str
    """Kind of event, as in `pliant.spec.Event`."""
    name: str
    step: int
    start: Any
    end: Any


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One communication, from its start until the end of the wait for it."""

    name: str
    step: int
    start: Any
    wait_from: Any
    end: Any
    sent_bytes: int
    received_bytes: int


@dataclass(kw_only=True)
class TaskRecord:
    """Record of one task of a communication thread: an exchange of a bucket."""

    name: str
    step: int
    start: Any = None
    end: Any = None
    messages: list[TransferRecord] = field(default_factory=list[TransferRecord])


class Tracer:
    """Measures how long a run waits for exchanges; while `on`, also records events, with marks of its clock.

    Communication threads, comms and the run write to it from threads of their own; a list's append is atomic.

    Args:
        device: Device of the model.
        comm: Comm of the run, which reports each communication.

    """

    def __init__(self, device: torch.device, comm: RecordedComm) -> None:
        self.device, self.comm = device, comm
        comm.listen(self)
        self.shutdown = Shutdown(comm)
        """End of the threads that write here."""
        self.clock = DeviceTimer(device)
        self.on = False
        self.step = 0
        """Step of the training thread, while on."""
        self.exposed_s = 0.0
        """Time that backward or the step has waited for exchanges."""
        self.events: list[ThreadEvent] = []
        self.tasks: list[TaskRecord] = []
        self.untasked: list[TransferRecord] = []
        """Messages sent outside any bucket's task, such as by server threads."""
        self._at_work = threading.local()

    def start(self, step: int) -> None:
        """Record events from now on, in this step and the next ones."""
        self.events, self.tasks, self.untasked = [], [], []
        self.step, self.on = step, True

    @contextmanager
    def record_wait(self) -> Generator[None]:
        """Count the time of the block as waiting for exchanges."""
        start_s, start = time.perf_counter(), self.now()
        try:
            yield
        finally:
            self.exposed_s += time.perf_counter() - start_s
            self.note("wait", "wait", start)

    @contextmanager
    def task(self, name: str, step: int) -> Generator[None]:
        """Record the block, in this thread, as the exchange of a bucket; without a name, record nothing."""
        with self.part_of(self.new_task(name, step), ends=True):
            yield

    def new_task(self, name: str, step: int) -> TaskRecord | None:
        """Return the record of an exchange that `part_of` begins; None where nothing is recorded."""
        return TaskRecord(name=name, step=step) if self.on and name else None

    @contextmanager
    def part_of(self, task: TaskRecord | None, ends: bool) -> Generator[None]:
        """Record the block, in this thread, as a part of an exchange, which may be its last."""
        if task is None:
            yield
            return
        task.start = task.start or self.clock.now()
        self._at_work.task = task
        try:
            yield
        finally:
            self._at_work.task = None
            if ends:
                task.end = self.clock.now()
                self.tasks.append(task)

    def note(self, kind: str, name: str, start: Any, end: Any = None) -> None:
        """Record an interval of the training thread; it ends now if no end is given."""
        if self.on and start is not None:
            self.events.append(
                ThreadEvent(kind=kind, name=name, step=self.step, start=start, end=end or self.clock.now())
            )

    def now(self) -> Any:
        """Return a mark; None while nothing is recorded."""
        return self.clock.now() if self.on else None

    def on_transfer(self, name: str, start: Any, wait_from: Any, sent_bytes: int, received_bytes: int) -> None:
        """Record a communication that has just ended; called by comms, in the thread that waited for it."""
        if self.on and start is not None and wait_from is not None:
            task: TaskRecord | None = getattr(self._at_work, "task", None)
            message = TransferRecord(
                name=name,
                step=self.step if task is None else task.step,
                start=start,
                wait_from=wait_from,
                end=self.clock.now(),
                sent_bytes=sent_bytes,
                received_bytes=received_bytes,
            )
            (self.untasked if task is None else task.messages).append(message)
