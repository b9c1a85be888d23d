"""Communication thread: runs exchange tasks in the order of submission, which is the same on every rank."""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from pliant.accelerator import current_stream, new_stream
from pliant.engine.tracer import Tracer

__all__ = ["CommThread", "TaskHandle"]

Task = Callable[[], None]


class TaskHandle:
    """Handle of a task in a communication thread."""

    def __init__(self, comm_thread: "CommThread") -> None:
        self._comm_thread = comm_thread
        self._done = threading.Event()
        self._recorded: Any = None

    @property
    def done(self) -> bool:
        """Whether the task has ended, was dropped or failed; on an accelerator, whether the device has got there."""
        return self._done.is_set() and (self._recorded is None or self._recorded.query())

    def wait(self) -> None:
        """Wait until the task is done (or let the device's stream wait), and raise an error that the comm thread has
        met.
        """
        self._done.wait()
        if self._recorded is not None:
            current_stream(self._comm_thread.device).wait_event(self._recorded)
        self._comm_thread.raise_error()

    def mark_done(self, recorded: Any) -> None:
        """Note that the task is done, and the event of its stream on an accelerator. Called by the comm thread."""
        self._recorded = recorded
        self._done.set()


class CommThread:
    """Runs tasks in the order of submission, beside the caller.

    A thread of its own does it: waiting for Gloo releases the GIL, so the backward pass goes on, and so it does where a
    task waits for an accelerator. There each task has a stream that waits for the caller's at the time of `submit`, and
    goes before it.

    Note [one order of collectives]: the ranks of a group must make the same calls in the same order. So each group
    belongs to one communication thread. Gradients have one, whose tasks are submitted in DDP's order of buckets, which
    is the same on all ranks; weights have a second one, with a group of its own (`another`). The training thread uses a
    group itself only between two steps, after `drain`. Nothing is communicated in a future's callback. What needs an
    order of its own has groups of its own: server threads, exchanges at a free pace and the tuner.

    After a task fails, later ones are dropped, so that nothing waits for a peer that will not answer; the next call
    that waits raises the first error.

    Args:
        device: Device of the tensors.
        name: Name of the thread.
        tracer: Tracer that records named tasks.

    """

    def __init__(self, device: torch.device, name: str, tracer: Tracer) -> None:
        self._tracer = tracer
        self.device, self._stream = device, new_stream(device)
        self._tasks: queue.SimpleQueue[tuple[Task, Task, TaskHandle, str, int, Any] | None] = queue.SimpleQueue()
        self._last: TaskHandle | None = None
        self._error: BaseException | None = None
        self.busy_s = 0.0
        """Time spent in tasks."""
        self._stopped, self._pid = False, os.getpid()
        self._thread: threading.Thread | None = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        tracer.shutdown.add(self)

    def submit(self, task: Task, done: Task = lambda: None, *, name: str = "", step: int = 0) -> TaskHandle:
        """Queue a task; `done` follows it in any case, also when the task failed or was dropped.

        Args:
            task: Function to run in the thread.
            done: Function to run after it.
            name: Bucket that it exchanges, for timelines; "" for other tasks.
            step: Step in which that bucket was ready.

        Raises:
            RuntimeError: The run has ended, or this process was forked from the one that trains.

        """
        if self._stopped or self._pid != os.getpid():
            raise RuntimeError(
                "this run has ended, so nothing can be exchanged; call relax() again."
                if self._stopped
                else "this process was forked from one that trains, and cannot take part in its exchanges; let the "
                "process that called relax() train, or start processes that train with 'spawn'."
            )
        handle = self._last = TaskHandle(self)
        ready = None if self._stream is None else current_stream(self.device).record_event()
        self._tasks.put((task, done, handle, name, step, ready))
        return handle

    def submit_all(self, tasks: list[tuple[str, Task]], *, step: int) -> TaskHandle:
        """Queue the tasks that are in the list when the tasks before have ended, each under its bucket's name."""

        def run() -> None:
            for name, task in tasks:
                with self._tracer.task(name, step):
                    task()

        return self.submit(run)

    def drain(self) -> None:
        """Wait until every task is done, and raise the first error that one of them met."""
        if self._last is not None:
            self._last.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error that a task met, once."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else it would hold this frame, which holds it, and with both every connection on its way

    def stop(self) -> None:
        """Drop queued tasks, and end the thread. Takes no lock and waits for nobody."""
        self._stopped = True
        self._tasks.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None and self._pid == os.getpid():
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
        self._stopped = True

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            self._take(*item)
            del item  # a thread that waits must not hold what it has done, or the run is never let go of

    def _take(self, task: Task, done: Task, handle: TaskHandle, name: str, step: int, ready: Any) -> None:
        if self._stream is None:
            self._run(task, done, name, step)
            handle.mark_done(None)
            return
        with self._stream:
            self._stream.wait_event(ready)
            self._run(task, done, name, step)
            handle.mark_done(self._stream.record_event())

    def _run(self, task: Task, done: Task, name: str, step: int) -> None:
        start_s = time.perf_counter()
        try:
            if self._error is None and not self._stopped:
                with self._tracer.task(name, step):
                    task()
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits raises it where the user can see it
            self._error = error
        finally:
            self.busy_s += time.perf_counter() - start_s
            done()
