"""Notes of what a run's threads do, taken where they do it; nothing is kept until a recording asks for it."""

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
    """Something that took time in the thread that trains; marks are those of the tracer's clock."""

    kind: str
    """As of `pliant.spec.Event`."""
    name: str
    step: int
    start: Any
    end: Any


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One communication, from its posting until somebody who waited for it had it."""

    name: str
    step: int
    start: Any
    wait_from: Any
    end: Any
    sent_bytes: int
    received_bytes: int


@dataclass(kw_only=True)
class TaskRecord:
    """Record of what a comm thread did for one bucket."""

    name: str
    step: int
    start: Any
    end: Any = None
    messages: list[TransferRecord] = field(default_factory=list[TransferRecord])


class Tracer:
    """Knows how long a run has waited for exchanges; while `on`, also keeps what happened, on marks of its clock.

    Lanes, comms and the run write on it from threads of their own; a list's append is atomic.

    Args:
        device: Where the model is.
        comm: Of the run; it tells of each communication.

    """

    def __init__(self, device: torch.device, comm: RecordedComm) -> None:
        self.device, self.comm = device, comm
        comm.listen(self)
        self.shutdown = Shutdown(comm)
        """Of the threads that write here."""
        self.clock = DeviceTimer(device)
        self.on = False
        self.step = 0
        """That the training thread is in, while on."""
        self.exposed_s = 0.0
        """Time in which backward, or the step, was done and the exchange was not."""
        self.events: list[ThreadEvent] = []
        self.tasks: list[TaskRecord] = []
        self.untasked: list[TransferRecord] = []
        """Of nobody's task: servers of owners talk for themselves."""
        self._at_work = threading.local()

    def start(self, step: int) -> None:
        """Keep what happens from now on, in this step and the next ones."""
        self.events, self.tasks, self.untasked = [], [], []
        self.step, self.on = step, True

    @contextmanager
    def record_wait(self) -> Generator[None]:
        """Count what happens in the block as time that was waited for exchanges."""
        start_s, start = time.perf_counter(), self.now()
        try:
            yield
        finally:
            self.exposed_s += time.perf_counter() - start_s
            self.note("wait", "wait", start)

    @contextmanager
    def task(self, name: str, step: int) -> Generator[None]:
        """Take what happens in the block, in this thread, as the exchange of a bucket; one without a name is none."""
        if not (self.on and name):
            yield
            return
        task = self._at_work.task = TaskRecord(name=name, step=step, start=self.now())
        try:
            yield
        finally:
            task.end = self.clock.now()
            self._at_work.task = None
            self.tasks.append(task)

    def note(self, kind: str, name: str, start: Any, end: Any = None) -> None:
        """Keep something of the training thread; its end is now if none is given."""
        if self.on and start is not None:
            self.events.append(
                ThreadEvent(kind=kind, name=name, step=self.step, start=start, end=end or self.clock.now())
            )

    def now(self) -> Any:
        """Return a mark; None while nothing is kept."""
        return self.clock.now() if self.on else None

    def on_transfer(self, name: str, start: Any, wait_from: Any, sent_bytes: int, received_bytes: int) -> None:
        """Keep a communication that has just ended; called by comms, in the thread that waited for it."""
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
